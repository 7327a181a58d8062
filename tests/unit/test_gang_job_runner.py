"""The program that travels, run as on a rank: in a process of its own, by a Python that knows nothing of us."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_gangjobs.decorators import runner
from airflow_provider_gangjobs.decorators.runner import Gang
from tests.patience import PATIENCE_S

RANK_1_OF_3 = {
    "JOB_COMPLETION_INDEX": "1",
    "GANG_SIZE": "3",
    "GANG_ATTEMPT": "2",
    "MASTER_ADDR": "etl-0.etl",
    "MASTER_PORT": "4000",
}


@dataclass
class Rank:
    """A folder with what is mounted on a rank."""

    folder: Path
    interpreter: tuple[str, ...] = (sys.executable, "-I")

    def run(
        self, source: str, *args: Any, env: dict[str, str] | None = None, results: str = "all", **kwargs: Any
    ) -> Ended:
        """Call the function `f` of the source. A parameter `gang` is given if its text has one."""
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        (files / runner.RUNNER).write_text(Path(runner.__file__).read_text())
        (files / runner.FUNCTION).write_text("from __future__ import annotations\n" + source)
        called = {"function": "f", "args": args, "kwargs": kwargs, "gang": "gang" in source.splitlines()[0]}
        (files / runner.ARGUMENTS).write_text(json.dumps(called))
        (files / runner.TASK).write_text(json.dumps({"file": "/dags/etl.py", "line": 40, "results": results}))
        result = self.folder / "result"
        result.write_text("")
        done = subprocess.run(
            [*self.interpreter, str(files / runner.RUNNER)],
            env={"GANG_RESULT_PATH": str(result), **(RANK_1_OF_3 if env is None else env)},
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_S,
            check=False,
        )
        return Ended(done.returncode, result.read_text(), done.stdout, done.stderr)


@dataclass
class Ended:
    code: int
    written: str
    out: str
    err: str

    @property
    def result(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.written)

    @property
    def error(self) -> str:
        assert self.code != 0
        error: str = json.loads(self.written)["error"]
        return error


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_result_is_what_the_function_returns(rank: Rank) -> None:
    assert rank.run("def f(a, *, b):\n    return {'sum': a + b, 'name': 'é'}", 1, b=2).result == {"sum": 3, "name": "é"}


def test_coroutine_function_is_awaited(rank: Rank) -> None:
    assert rank.run("async def f():\n    import asyncio\n    await asyncio.sleep(0)\n    return 5").result == 5


def test_no_value_writes_nothing(rank: Rank) -> None:
    ended = rank.run("def f():\n    print('worked')")

    assert (ended.code, ended.written, ended.out) == (0, "", "worked\n")


def test_gang_is_given_to_who_asks_for_it(rank: Rank) -> None:
    source = (
        "def f(*, gang: Gang):\n    return [gang.rank, gang.world_size, gang.attempt, gang.hosts, gang.master_port]"
    )

    assert rank.run(source).result == [1, 3, 2, ["etl-0.etl", "etl-1.etl", "etl-2.etl"], 4000]


def test_rank_knows_its_own_name(rank: Rank) -> None:
    assert rank.run("def f(*, gang):\n    return [gang.host, gang.master_addr]").result == ["etl-1.etl", "etl-0.etl"]


def test_class_of_the_gang_is_at_hand(rank: Rank) -> None:
    assert rank.run("def f(gang):\n    return isinstance(gang, Gang)").result is True


def test_modules_beside_the_function_can_be_imported(rank: Rank) -> None:
    (rank.folder / "files").mkdir()
    (rank.folder / "files" / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    rank.interpreter = (sys.executable, "-s")  # -I would leave the folder out

    assert rank.run(
        "def f(*, gang):\n    import helper\n    return helper.twice(len(list(gang.files.iterdir())))"
    ).result


def test_processes_that_the_function_spawns_find_it(rank: Rank) -> None:
    rank.interpreter = (sys.executable, "-s")
    source = """def f(depth=1):
    import multiprocessing
    if depth == 0:
        return 'child'
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return pool.apply(f, [0])
"""
    assert rank.run(source).result == "child"


def test_names_that_annotations_use_need_not_exist(rank: Rank) -> None:
    assert rank.run("def f(frame: pd.DataFrame = None) -> np.ndarray:\n    return 1").result == 1


@pytest.mark.parametrize(
    ("results", "index", "is_written"),
    [("all", "2", True), ("rank0", "0", True), ("rank0", "2", False), ("none", "0", False)],
)
def test_only_a_result_that_is_wanted_is_written(rank: Rank, results: str, index: str, is_written: bool) -> None:
    ended = rank.run("def f():\n    return 7", env={"JOB_COMPLETION_INDEX": index}, results=results)

    assert (ended.code, ended.written) == (0, "7" if is_written else "")


def test_result_that_nobody_wants_may_be_anything(rank: Rank) -> None:
    assert rank.run("def f():\n    return object()", results="none").code == 0


# -- failures -------------------------------------------------------------------------------------------------


def test_exception_is_told_and_its_traceback_has_the_lines_of_the_dag_file(rank: Rank) -> None:
    ended = rank.run("def f():\n    x = 1\n    raise ValueError(f'no rows in shard {x}')")

    assert (ended.code, ended.error) == (1, "ValueError: no rows in shard 1")
    assert json.loads(ended.written)["at"] > 1.7e9
    assert '  File "/dags/etl.py", line 43, in f\n    raise ValueError' in ended.err
    assert runner.RUNNER not in ended.err


def test_exception_of_a_module_is_told_with_its_module(rank: Rank) -> None:
    assert rank.run("def f():\n    import json\n    json.loads('{')").error.startswith("json.decoder.JSONDecodeError: ")


@pytest.mark.parametrize("character", ["x", "\\n", "é", "\\U0001f600", "\\x00", "\\ud800", '\\"'])
def test_long_message_is_cut_and_stays_readable(rank: Rank, character: str) -> None:
    ended = rank.run(f'def f():\n    raise ValueError("{character}" * 5000)')

    assert len(ended.written.encode()) <= runner.RESULT_BYTES_MAX
    assert ended.error.startswith("ValueError:")


def test_traceback_survives_an_error_without_a_message(rank: Rank) -> None:
    assert rank.run("def f():\n    raise KeyError").error == "KeyError"


NO_CODE = "exit codes are 0 to 255, so the rank exits with code 1"


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        ("3", 3, "SystemExit: 3"),
        ("255", 255, "SystemExit: 255"),
        ("True", 1, "SystemExit: 1"),
        ("256", 1, f"SystemExit: sys.exit(256): {NO_CODE}"),
        ("1 << 64", 1, f"SystemExit: sys.exit(18446744073709551616): {NO_CODE}"),
        ("-1", 1, f"SystemExit: sys.exit(-1): {NO_CODE}"),
        ("-256", 1, f"SystemExit: sys.exit(-256): {NO_CODE}"),
        ("'no luck'", 1, "SystemExit: no luck"),
        ("''", 1, "SystemExit: 1"),
        ("0.0", 1, "SystemExit: 0.0"),
        ("(0, 1)", 1, "SystemExit: (0, 1)"),
    ],
)
def test_exit_with_a_status_that_is_not_zero_fails_the_rank(rank: Rank, status: str, code: int, error: str) -> None:
    ended = rank.run(f"def f():\n    import sys\n    sys.exit({status})")

    assert (ended.code, ended.error) == (code, error)


@pytest.mark.parametrize("status", ["", "None", "0", "False"])
def test_exit_without_a_status_or_with_zero_is_a_success(rank: Rank, status: str) -> None:
    ended = rank.run(f"def f():\n    import sys\n    sys.exit({status})")

    assert (ended.code, ended.written) == (0, "")


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "GeneratorExit", "asyncio.CancelledError"])
def test_exception_that_is_no_subclass_of_exception_fails_the_rank(rank: Rank, raised: str) -> None:
    ended = rank.run(f"def f():\n    import asyncio\n    raise {raised}")

    assert ended.code == 1
    assert ended.error.endswith(raised.rpartition(".")[2])


def test_result_that_cannot_be_written_fails_the_rank(rank: Rank) -> None:
    ended = rank.run("def f():\n    return 7", env={**RANK_1_OF_3, "GANG_RESULT_PATH": "/nowhere/result"})

    assert ended.code == 1
    assert "FileNotFoundError" in ended.err
    assert "The reason could not be written to GANG_RESULT_PATH" in ended.err


def test_rank_that_is_told_to_end_runs_its_finally_blocks_and_waits_for_no_thread(rank: Rank) -> None:
    source = """def f():
    import os, signal, threading, time
    threading.Thread(target=time.sleep, args=[3000]).start()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(3000)
    except Exception:
        print('not this')
    finally:
        print('saved')
"""
    ended = rank.run(source)

    assert (ended.code, ended.written, ended.out) == (143, "", "saved\n")
    assert ended.err == "ended by SIGTERM\n"


def test_process_that_the_function_has_forked_ends_by_the_signal_as_anywhere(rank: Rank) -> None:
    source = """def f():
    import multiprocessing, time
    codes = set()
    for _ in range(20):
        child = multiprocessing.get_context('fork').Process(target=time.sleep, args=[3000])
        child.start()
        child.terminate()
        child.join()
        codes.add(child.exitcode)
    return sorted(codes)
"""
    assert rank.run(source).result == [-15]


def test_function_may_handle_the_signal_itself(rank: Rank) -> None:
    source = """def f():
    import os, signal
    signal.signal(signal.SIGTERM, lambda number, frame: print('noted'))
    os.kill(os.getpid(), signal.SIGTERM)
    return 1
"""
    ended = rank.run(source)

    assert (ended.result, ended.out) == (1, "noted\n")


def test_source_that_this_python_cannot_read_is_told_with_its_version(rank: Rank) -> None:
    error = rank.run("def f():\n    return 1 +").error

    assert error.startswith("SyntaxError: ")
    assert f"the image has Python {sys.version.split()[0]}" in error


LOST = {
    "a type": ("{'rows': [1, {2}]}", "the value['rows'][1] is of type set"),
    "a type of a module": ("__import__('datetime').date(2026, 1, 1)", "the value is of type datetime.date"),
    "no number": ("{'loss': float('nan')}", "the value['loss'] is nan"),
    "a key": ("{(1, 2): 3}", "the value has the key (1, 2)"),
    "itself": ("(lambda x: x.append(x) or x)([])", "it contains itself"),
    "half a character": ("'\\ud800'", "surrogates not allowed"),
}


@pytest.mark.parametrize(("value", "problem"), LOST.values(), ids=LOST)
def test_result_that_json_does_not_hold_is_told_by_its_place(rank: Rank, value: str, problem: str) -> None:
    ended = rank.run(f"def f():\n    return {value}")

    assert ended.code == 1
    assert problem in ended.error
    assert problem in ended.err


@pytest.mark.parametrize(("characters", "code"), [(4093, 0), (4094, 1)])
def test_result_may_have_as_many_bytes_as_are_kept(rank: Rank, characters: int, code: int) -> None:
    ended = rank.run("def f(n):\n    return 'x' * n", characters)

    assert ended.code == code
    if code:
        assert ended.error == (
            "f returned 4096 bytes of JSON, 4095 are kept. Write it to storage and return its address"
        )
        assert ended.error in ended.err


def test_pod_without_a_rank_is_no_rank_of_a_gang(rank: Rank) -> None:
    assert "completionMode Indexed" in rank.run("def f(gang):\n    return 1", env={}).error
    assert rank.run("def f():\n    return 1", env={}).result == 1


# -- the gang -------------------------------------------------------------------------------------------------


def test_single_rank_is_its_own_master() -> None:
    gang = Gang.of({"JOB_COMPLETION_INDEX": "0"}, Path("/gang/files"))

    assert gang == Gang(rank=0, world_size=1)
    assert (gang.hosts, gang.host) == (["localhost"], "localhost")


def test_ranks_without_a_rendezvous_have_no_names() -> None:
    gang = Gang.of({"JOB_COMPLETION_INDEX": "1", "GANG_SIZE": "2"}, Path("/gang/files"))

    assert (gang.rank, gang.world_size) == (1, 2)
    with pytest.raises(RuntimeError, match="without a rendezvous"):
        _ = gang.hosts


# -- what the image needs -------------------------------------------------------------------------------------


def test_python_3_8_can_read_it() -> None:
    ast.parse(Path(runner.__file__).read_text(), feature_version=(3, 8))


def test_standard_library_is_all_it_imports() -> None:
    tree = ast.walk(ast.parse(Path(runner.__file__).read_text()))
    imported = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    tree = ast.walk(ast.parse(Path(runner.__file__).read_text()))
    imported |= {str(node.module) for node in tree if isinstance(node, ast.ImportFrom)}

    assert imported <= sys.stdlib_module_names
