"""The runner, run as on a rank: in a separate process whose Python does not have this provider."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_gangjobs.container_programs import gangjobs_rank, gangjobs_result, python_runner
from airflow_provider_gangjobs.container_programs.python_runner import Gang
from tests.timeouts import TIMEOUT_S

RANK_1_OF_3 = {
    "JOB_COMPLETION_INDEX": "1",
    "GANG_SIZE": "3",
    "GANG_ATTEMPT": "2",
    "MASTER_ADDR": "etl-0.etl",
    "MASTER_PORT": "4000",
}


@dataclass
class Rank:
    """A directory with the files that a rank mounts."""

    folder: Path
    interpreter: tuple[str, ...] = (sys.executable, "-I")

    def run(
        self, source: str, *args: Any, env: dict[str, str] | None = None, results: str = "all", **kwargs: Any
    ) -> RankRun:
        """Call the function `f` of the source. The runner passes `gang` if the first line of the source has it."""
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        (files / python_runner.RUNNER_FILE).write_text(Path(python_runner.__file__).read_text())
        (files / python_runner.RESULT_HELPER_FILE).write_text(Path(gangjobs_result.__file__).read_text())
        (files / python_runner.FUNCTION_FILE).write_text("from __future__ import annotations\n" + source)
        arguments = {"function": "f", "args": args, "kwargs": kwargs, "gang": "gang" in source.splitlines()[0]}
        (files / python_runner.ARGUMENTS_FILE).write_text(json.dumps(arguments))
        (files / python_runner.TASK_FILE).write_text(
            json.dumps({"file": "/dags/etl.py", "line": 40, "results": results})
        )
        result = self.folder / "result"
        result.write_text("")
        process = subprocess.run(
            [*self.interpreter, str(files / python_runner.RUNNER_FILE)],
            env={"GANG_RESULT_PATH": str(result), **(RANK_1_OF_3 if env is None else env)},
            capture_output=True,
            text=True,
            timeout=5 * TIMEOUT_S,
            check=False,
        )
        return RankRun(process.returncode, result.read_text(), process.stdout, process.stderr)


@dataclass
class RankRun:
    """The exit code, the result file and the output of a rank."""

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
    run = rank.run("def f():\n    print('worked')")

    assert (run.code, run.written, run.out) == (0, "", "worked\n")


def test_parameter_gang_receives_the_gang(rank: Rank) -> None:
    source = (
        "def f(*, gang: Gang):\n    return [gang.rank, gang.world_size, gang.attempt, gang.hosts, gang.master_port]"
    )

    assert rank.run(source).result == [1, 3, 2, ["etl-0.etl", "etl-1.etl", "etl-2.etl"], 4000]


def test_spawned_processes_can_import_the_function(rank: Rank) -> None:
    rank.interpreter = (sys.executable, "-s")
    source = """def f(depth=1):
    import multiprocessing
    if depth == 0:
        return 'child'
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return pool.apply(f, [0])
"""
    assert rank.run(source).result == "child"


def test_annotations_are_not_evaluated(rank: Rank) -> None:
    assert rank.run("def f(frame: pd.DataFrame = None) -> np.ndarray:\n    return 1").result == 1


@pytest.mark.parametrize(
    ("results", "index", "is_written"),
    [("all", "2", True), ("rank0", "0", True), ("rank0", "2", False), ("none", "0", False)],
)
def test_only_a_requested_result_is_written(rank: Rank, results: str, index: str, is_written: bool) -> None:
    run = rank.run("def f():\n    return 7", env={"JOB_COMPLETION_INDEX": index}, results=results)

    assert (run.code, run.written) == (0, "7" if is_written else "")


# -- failures -------------------------------------------------------------------------------------------------


def test_exception_is_recorded_with_a_traceback_of_the_dag_file(rank: Rank) -> None:
    run = rank.run("def f():\n    x = 1\n    raise ValueError(f'no rows in shard {x}')")

    assert (run.code, run.error) == (1, "ValueError: no rows in shard 1")
    assert json.loads(run.written)["at"] > 1.7e9
    assert '  File "/dags/etl.py", line 43, in f\n    raise ValueError' in run.err
    assert python_runner.RUNNER_FILE not in run.err


def test_recorded_exception_has_its_module(rank: Rank) -> None:
    assert rank.run("def f():\n    import json\n    json.loads('{')").error.startswith("json.decoder.JSONDecodeError: ")


@pytest.mark.parametrize("character", ["x", "\\n", "é", "\\U0001f600", "\\x00", "\\ud800", '\\"'])
def test_long_message_is_truncated_to_valid_json(rank: Rank, character: str) -> None:
    run = rank.run(f'def f():\n    raise ValueError("{character}" * 5000)')

    assert len(run.written.encode()) <= python_runner.RESULT_BYTES_MAX
    assert run.error.startswith("ValueError:")


def test_exception_without_a_message_is_recorded(rank: Rank) -> None:
    assert rank.run("def f():\n    raise KeyError").error == "KeyError"


INVALID_CODE = "exit codes are 0 to 255, so the rank exits with code 1"


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        ("3", 3, "SystemExit: 3"),
        ("255", 255, "SystemExit: 255"),
        ("True", 1, "SystemExit: 1"),
        ("256", 1, f"SystemExit: sys.exit(256): {INVALID_CODE}"),
        ("1 << 64", 1, f"SystemExit: sys.exit(18446744073709551616): {INVALID_CODE}"),
        ("-1", 1, f"SystemExit: sys.exit(-1): {INVALID_CODE}"),
        ("-256", 1, f"SystemExit: sys.exit(-256): {INVALID_CODE}"),
        ("'no luck'", 1, "SystemExit: no luck"),
        ("''", 1, "SystemExit: 1"),
        ("0.0", 1, "SystemExit: 0.0"),
        ("(0, 1)", 1, "SystemExit: (0, 1)"),
    ],
)
def test_exit_with_a_status_that_is_not_zero_fails_the_rank(rank: Rank, status: str, code: int, error: str) -> None:
    run = rank.run(f"def f():\n    import sys\n    sys.exit({status})")

    assert (run.code, run.error) == (code, error)


@pytest.mark.parametrize("status", ["", "None", "0", "False"])
def test_exit_without_a_status_or_with_zero_is_a_success(rank: Rank, status: str) -> None:
    run = rank.run(f"def f():\n    import sys\n    sys.exit({status})")

    assert (run.code, run.written) == (0, "")


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "GeneratorExit", "asyncio.CancelledError"])
def test_exception_that_is_no_subclass_of_exception_fails_the_rank(rank: Rank, raised: str) -> None:
    run = rank.run(f"def f():\n    import asyncio\n    raise {raised}")

    assert run.code == 1
    assert run.error.endswith(raised.rpartition(".")[2])


def test_result_that_cannot_be_written_fails_the_rank(rank: Rank) -> None:
    run = rank.run("def f():\n    return 7", env={**RANK_1_OF_3, "GANG_RESULT_PATH": "/nowhere/result"})

    assert run.code == 1
    assert "FileNotFoundError" in run.err
    assert "The reason could not be written to GANG_RESULT_PATH" in run.err


def test_storage_that_cannot_be_written_fails_the_rank_before_the_function_runs(rank: Rank) -> None:
    env = {**RANK_1_OF_3, "GANG_RESULT_STORAGE": "s3://bucket/results"}
    rank.interpreter = (sys.executable, "-I", "-S")

    run = rank.run("def f():\n    print('ran')", env={**env, "GANG_RESULT_PATH": str(rank.folder / "result")})

    assert (run.code, run.out) == (1, "")
    assert "This image cannot use s3:// (No module named 'fsspec')" in run.error


def test_sigterm_runs_finally_blocks_and_waits_for_no_thread(rank: Rank) -> None:
    source = """def f():
    import os, signal, threading, time
    threading.Thread(target=time.sleep, args=[3000]).start()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(3000)
    except Exception:
        print('swallowed')
    finally:
        print('saved')
"""
    run = rank.run(source)

    assert (run.code, run.written, run.out) == (143, "", "saved\n")
    assert run.err == "ended by SIGTERM\n"


def test_sigterm_ends_forked_processes(rank: Rank) -> None:
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
    run = rank.run(source)

    assert (run.result, run.out) == (1, "noted\n")


def test_syntax_error_is_recorded_with_the_python_version(rank: Rank) -> None:
    error = rank.run("def f():\n    return 1 +").error

    assert error.startswith("SyntaxError: ")
    assert f"the image has Python {sys.version.split()[0]}" in error


NO_RESULTS = {
    "a type": ("{'rows': [1, {2}]}", 'result["rows"][1] is of type set'),
    "not a number": ("{'loss': float('nan')}", 'result["loss"] is NaN'),
    "a key": ("{(1, 2): 3}", "result has the key (1, 2), which is of type tuple"),
    "itself": ("(lambda x: x.append(x) or x)([])", "is nested more than 100 deep"),
    "half a character": ("'\\ud800'", "result has the character U+D800"),
    "U+0000": ("['a', 'a\\0b']", "result[1] has the character U+0000"),
    "a long integer": ("{'n': 2**70}", 'result["n"] is an integer of 71 bits'),
}


@pytest.mark.parametrize(("value", "problem"), NO_RESULTS.values(), ids=NO_RESULTS)
def test_place_of_what_airflow_cannot_store_is_recorded(rank: Rank, value: str, problem: str) -> None:
    run = rank.run(f"def f():\n    return {value}")

    assert run.code == 1
    assert problem in run.error
    assert problem in run.err


@pytest.mark.parametrize(("characters", "code"), [(4093, 0), (4094, 1)])
def test_result_may_have_4095_bytes(rank: Rank, characters: int, code: int) -> None:
    run = rank.run("def f(n):\n    return 'x' * n", characters)

    assert run.code == code
    if code:
        assert run.error == (
            "f returned 4096 bytes of JSON, 4095 are kept."
            " Set result_storage of the task, or write it to storage and return its address"
        )
        assert run.error in run.err


def test_pod_without_a_rank_cannot_have_a_gang(rank: Rank) -> None:
    assert "completionMode Indexed" in rank.run("def f(gang):\n    return 1", env={}).error
    assert rank.run("def f():\n    return 1", env={}).result == 1


# -- the gang -------------------------------------------------------------------------------------------------


def test_single_rank_is_its_own_master_address() -> None:
    gang = Gang.of({"JOB_COMPLETION_INDEX": "0"}, Path("/gang/files"))

    assert gang == Gang(rank=0, world_size=1)
    assert (gang.hosts, gang.host) == (["localhost"], "localhost")


def test_ranks_without_a_rendezvous_have_no_host_names() -> None:
    gang = Gang.of({"JOB_COMPLETION_INDEX": "1", "GANG_SIZE": "2"}, Path("/gang/files"))

    assert (gang.rank, gang.world_size) == (1, 2)
    with pytest.raises(RuntimeError, match="without a rendezvous"):
        _ = gang.hosts


# -- progress and checkpoints ----------------------------------------------------------------------------------


def with_rank_helper(rank: Rank) -> dict[str, str]:
    """Mount the file for progress and checkpoints, as a supervisor needs it, and return its variables."""
    (rank.folder / "files").mkdir()
    (rank.folder / "files" / python_runner.RANK_HELPER_FILE).write_text(Path(gangjobs_rank.__file__).read_text())
    paths = {"GANG_PROGRESS_PATH": rank.folder / "progress", "GANG_CHECKPOINT_DIR": rank.folder / "checkpoints"}
    return RANK_1_OF_3 | {name: str(path) for name, path in paths.items()}


def test_function_reports_progress_and_writes_its_part_of_a_checkpoint(rank: Rank) -> None:
    env, rank.interpreter = with_rank_helper(rank), (sys.executable,)
    source = """def f(*, gang: Gang):
    from gangjobs_rank import checkpoints

    gang.progress(step=2, total=4, metrics={"loss": 0.5})
    with gang.checkpoints.write(2) as folder:
        (folder / "state").write_text("two")
    return gang.checkpoints is checkpoints()
"""

    assert rank.run(source, env=env).result is True
    progress = json.loads((rank.folder / "progress").read_text())
    assert (progress["step"], progress["total"], progress["checkpoint_at"] > 0) == (2, 4, True)
    part = rank.folder / "checkpoints" / "step-000000000002" / "rank-00001-of-00003"
    assert (part / "state").read_text() == "two"


# -- what the image needs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [python_runner, gangjobs_result, gangjobs_rank], ids=["runner", "results", "rank"])
def test_programs_of_ranks_have_the_syntax_of_python_3_8(module: Any) -> None:
    ast.parse(Path(module.__file__).read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("module", [python_runner, gangjobs_result, gangjobs_rank], ids=["runner", "results", "rank"])
def test_programs_of_ranks_import_only_the_standard_library(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text()).body  # without the imports inside functions
    imported = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in tree if isinstance(node, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
