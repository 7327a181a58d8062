"""The helpers of programs in the containers of ranks: progress, checkpoints and large results."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_gangjobs.container_programs import gangjobs_rank, gangjobs_result
from airflow_provider_gangjobs.container_programs.gangjobs_rank import CheckpointError, Checkpoints
from airflow_provider_gangjobs.hooks.results import is_stored, read_result
from tests.timeouts import TIMEOUT_S

# -- The helper that reports progress and keeps checkpoints, in the processes of ranks where a process matters -------

HELPER = Path(gangjobs_rank.__file__)
IMPORTS = f"import sys; sys.path.insert(0, {str(HELPER.parent)!r})\nfrom gangjobs_rank import checkpoints, progress\n"


@pytest.fixture(autouse=True)
def path_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the helper find the module beside it, as in the folder of a gang's files."""
    monkeypatch.syspath_prepend(HELPER.parent)


def start(program: str, **environ: str) -> subprocess.Popen[str]:
    """Start a program of a rank, with the standard library only."""
    command = [sys.executable, "-I", "-S", "-c", IMPORTS + program]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(program: str, **environ: str) -> str:
    """Return what a program of a rank prints."""
    process = start(program, **environ)
    out, err = process.communicate(timeout=5 * TIMEOUT_S)
    assert process.returncode == 0, err
    return out


# -- progress --------------------------------------------------------------------------------------------------


def reported(program: str, folder: Path, **environ: str) -> Any:
    """Return what the supervisor of a rank reads after the program."""
    path = folder / "progress"
    run(program, GANG_PROGRESS_PATH=str(path), **environ)
    return json.loads(path.read_text()) if path.exists() else None


def test_progress_is_written_for_the_supervisor(tmp_path: Path) -> None:
    content = reported("progress(step=3, total=10, metrics={'loss': 0.5})", tmp_path)

    assert content.pop("pid") > 0
    assert content == {
        "step": 3,
        "total": 10,
        "metrics": {"loss": 0.5},
        "stacks": True,
        "checkpoint_at": None,
    }


def test_last_step_is_written_however_often_the_program_reports(tmp_path: Path) -> None:
    program = """
import os, time
writes, began = [], time.monotonic()
os.replace, move = lambda *a: (writes.append(a), move(*a)), os.replace
for step in range(100_001):
    progress(step)
assert len(writes) <= (time.monotonic() - began) / 0.1 + 1, len(writes)
"""

    assert reported(program, tmp_path)["step"] == 100_000


def test_progress_never_raises_and_warns_once(tmp_path: Path) -> None:
    program = """
class Bad(dict):
    def items(self): raise RuntimeError("no items")
class NoName:
    def __str__(self): raise RuntimeError("no name")
for step in (float("nan"), float("inf"), None, "x", [], 10**400, 1):
    for metrics in ([1], Bad(), {NoName(): 1}, {"\\ud800": float("nan"), "\\0": 1}, {"a": []}, 7):
        progress(step, total=step, metrics=metrics)
progress(2, metrics={"loss": 0.5})
"""
    process = start(program, GANG_PROGRESS_PATH=str(tmp_path / "progress"))
    _, err = process.communicate(timeout=5 * TIMEOUT_S)

    assert (process.returncode, err.count("\n")) == (0, 1), err
    assert "left out" in err
    content = json.loads((tmp_path / "progress").read_text())
    assert (content["step"], content["metrics"]) == (2, {"loss": 0.5})


def test_metrics_are_at_most_eight_finite_numbers(tmp_path: Path) -> None:
    others = "'nan': float('nan'), 'text': 'x', 'int': 10**400"
    program = f"progress(1, metrics={{{others}, **{{f'm{{n}}': n for n in range(9)}}}})"

    assert reported(program, tmp_path)["metrics"] == {f"m{number}": number for number in range(8)}


def test_program_outside_of_a_gang_reports_nothing(tmp_path: Path) -> None:
    assert run("progress(1); print('done')", HOME=str(tmp_path)) == "done\n"


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"])
def test_only_the_first_process_of_a_rank_reports(tmp_path: Path, variable: str) -> None:
    assert reported("progress(1)", tmp_path, **{variable: "1"}) is None
    assert reported("progress(1)", tmp_path, **{variable: "0"})["step"] == 1


def test_program_goes_on_if_progress_cannot_be_written(tmp_path: Path) -> None:
    process = start("progress(1); progress(2); print('done')", GANG_PROGRESS_PATH=str(tmp_path / "absent" / "progress"))
    out, err = process.communicate(timeout=5 * TIMEOUT_S)

    assert (process.returncode, out) == (0, "done\n")
    assert err.count("cannot be written") == 1


def test_rank_whose_disk_is_full_is_not_silent(tmp_path: Path) -> None:
    program = """
import os, time
path = os.environ["GANG_PROGRESS_PATH"]
progress(1)
os.utime(path, (1, 1))
os.symlink("/dev/full", f"{path}.{os.getpid()}.part")
time.sleep(0.2)
progress(2)
print(os.stat(path).st_mtime > 1)
"""
    process = start(program, GANG_PROGRESS_PATH=str(tmp_path / "progress"))

    assert process.communicate(timeout=5 * TIMEOUT_S)[0] == "True\n"


def test_signal_of_the_supervisor_writes_the_stack_of_every_thread(tmp_path: Path) -> None:
    program = """
import threading, time, os, signal
def waits_for_data(): time.sleep(60)
threading.Thread(target=waits_for_data, daemon=True).start()
def hangs():
    os.kill(os.getpid(), signal.SIGUSR2)
progress(1)
hangs()
"""
    reported(program, tmp_path)
    stacks = (tmp_path / "stacks").read_text()

    assert "hangs" in stacks
    assert "waits_for_data" in stacks


def test_signal_that_the_program_uses_itself_is_left_alone(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGUSR2, lambda *_: None); progress(1)"

    assert reported(program, tmp_path)["stacks"] is False


# -- checkpoints -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder of a volume, or the URL of an object store."""
    return {
        "folder": str(tmp_path / "checkpoints"),
        "file": f"file://{tmp_path}/checkpoints",
        "memory": f"memory://conn@{uuid.uuid4()}/checkpoints",
    }[request.param]


def write(checkpoints: Checkpoints, step: int, text: str = "x", **options: Any) -> None:
    with checkpoints.write(step, **options) as folder:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(text)


def read(checkpoints: Checkpoints) -> tuple[int, str] | None:
    """Return the step of the newest checkpoint and what this rank has written for it."""
    newest = checkpoints.newest()
    return None if newest is None else (newest.step, (newest.folder / "model" / "weights").read_text())


def gang(place: str, size: int = 2) -> list[Checkpoints]:
    """Return the checkpoints of each rank, as the programs of a new restart see them."""
    return [Checkpoints(place, rank, size) for rank in range(size)]


def test_each_rank_finds_its_part_of_the_newest_checkpoint(place: str) -> None:
    assert gang(place)[0].newest() is None
    for step in (9, 10):
        for rank, checkpoints in enumerate(gang(place)):
            write(checkpoints, step, f"rank {rank} at {step}")

    assert [read(checkpoints) for checkpoints in gang(place)] == [(10, "rank 0 at 10"), (10, "rank 1 at 10")]


def test_checkpoint_without_the_part_of_a_rank_is_not_complete(place: str) -> None:
    for checkpoints in gang(place):
        write(checkpoints, 5)
    write(gang(place)[1], 6)

    assert [read(checkpoints) for checkpoints in gang(place)] == [(5, "x"), (5, "x")]


def test_parts_of_two_restarts_never_make_a_checkpoint(place: str) -> None:
    for checkpoints in gang(place):
        write(checkpoints, 5)
    write(gang(place)[1], 6, "before the restart")
    first, second = gang(place)
    assert first.newest()
    assert second.newest()
    write(first, 6, "after the restart")

    assert read(first) == (5, "x")
    write(second, 6, "after the restart")
    assert read(second) == (6, "after the restart")


def test_block_that_fails_writes_no_part(place: str) -> None:
    (checkpoints,) = gang(place, 1)
    write(checkpoints, 5)

    def fail() -> None:
        with checkpoints.write(6) as folder:
            (folder / "model").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert read(checkpoints) == (5, "x")


def test_rank_0_removes_the_older_checkpoints(place: str) -> None:
    ranks = gang(place)
    write(ranks[1], 1)
    for step in range(2, 7):
        for checkpoints in reversed(ranks):
            write(checkpoints, step, keep=2)

    assert sorted(ranks[0]._store.parts()) == [5, 6]


def test_rest_of_a_checkpoint_that_was_being_removed_disappears(tmp_path: Path) -> None:
    rest = tmp_path / ".removed-step-000000000001-7" / "rank-00000-of-00001"
    rest.mkdir(parents=True)

    assert Checkpoints(str(tmp_path), 0, 1).newest() is None
    assert list(tmp_path.iterdir()) == []


def test_rank_that_begins_late_finds_the_checkpoint_that_the_others_have_found(place: str) -> None:
    for rank in range(2):
        write(Checkpoints(place, rank, 2, "0badc0de-0"), 5)
    write(Checkpoints(place, 1, 2, "0badc0de-0"), 10)
    first, late = (Checkpoints(place, rank, 2, "0badc0de-1") for rank in range(2))
    assert read(first) == (5, "x")
    write(first, 10)

    assert read(late) == (5, "x"), "step 10 has parts of two restarts"


def test_variables_of_a_gang_name_its_restart(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    environ = {"GANG_CHECKPOINT_DIR": str(tmp_path), "GANG_RESTART": "2", "GANG_SUPERVISOR_KEY_FILE": str(key)}
    write(Checkpoints.of(environ), 1)
    (part,) = (tmp_path / "step-000000000001").iterdir()

    assert part.name == "rank-00000-of-00001-2bb80d53-2"


def test_state_that_all_ranks_have_in_common_is_written_by_rank_0(place: str) -> None:
    first, second = gang(place)
    write(first, 5, "common", ranks=1)

    assert read(second) == (5, "common")
    with pytest.raises(CheckpointError, match="Rank 1 cannot write a part of 1"), second.write(6, ranks=1):
        pass


@pytest.mark.parametrize("size", [1, 2, 6])
def test_checkpoint_of_another_number_of_ranks_is_read_by_its_parts_only(place: str, size: int) -> None:
    for checkpoints in gang(place, 4):
        write(checkpoints, 5)

    for checkpoints in gang(place, size):
        newest = checkpoints.newest()
        assert newest
        assert (newest.ranks, (newest.part(3) / "model" / "weights").read_text()) == (4, "x")
        with pytest.raises(CheckpointError, match=f"of step 5 has parts of 4 ranks, and {size} ranks? run"):
            _ = newest.folder


def test_step_that_is_a_whole_number_of_another_type_is_found(place: str) -> None:
    (checkpoints,) = gang(place, 1)
    for step in (200.0, 3e5):
        write(checkpoints, step)  # type: ignore[arg-type]
        assert read(checkpoints) == (int(step), "x")


@pytest.mark.parametrize("step", [True, 0.5, "7", None, math.nan, math.inf, -1, 10**18])
def test_step_that_is_no_whole_number_is_refused(place: str, step: Any) -> None:
    (checkpoints,) = gang(place, 1)

    with pytest.raises((TypeError, ValueError, OverflowError, CheckpointError)):
        write(checkpoints, step)
    assert checkpoints._store.parts() == {}


def test_rank_that_is_killed_at_any_moment_leaves_whole_checkpoints(tmp_path: Path) -> None:
    program = """
for step in range(1, 10_000):
    with checkpoints().write(step, keep=2) as folder:
        for name in "abc":
            (folder / name).write_text(str(step) * 1000)
    print(step, flush=True)
"""
    draw = random.Random(7)
    for number in range(12):
        environ = {"GANG_CHECKPOINT_DIR": str(tmp_path / f"checkpoints-{number}")}
        with start(program, **environ) as process:
            assert process.stdout
            last = int(process.stdout.readline())
            time.sleep(draw.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            # `communicate` would lose what `readline` has read ahead.
            last = max([last, *(int(line) for line in process.stdout.read().split())])
        newest = Checkpoints.of(environ).newest()
        assert newest
        assert newest.step in (last, last + 1), "the last step that was written is kept"
        assert {path.read_text() for path in newest.folder.iterdir()} == {str(newest.step) * 1000}


def test_variables_of_a_rank_say_which_part_it_writes(tmp_path: Path) -> None:
    of_gang = {"GANG_CHECKPOINT_DIR": str(tmp_path), "GANG_SIZE": "4", "JOB_COMPLETION_INDEX": "1"}
    of_mpi = {**of_gang, "GANG_MPI_FOLDER": "/gang/mpi"}
    ranks = {
        "rank-00001-of-00004": of_gang,
        "rank-00003-of-00004": {**of_gang, "GANG_RANK_OFFSET": "2"},
        "rank-00005-of-00008": {**of_gang, "TORCHELASTIC_RUN_ID": "none", "RANK": "5", "WORLD_SIZE": "8"},
        "rank-00002-of-00008": {**of_mpi, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8"},
        "rank-00003-of-00008": {**of_mpi, "PMI_RANK": "3", "PMI_SIZE": "8"},
    }
    for name, environ in ranks.items():
        write(Checkpoints.of(environ), 1)
        assert (tmp_path / "step-000000000001" / name).is_dir()
    shard = Checkpoints.of({**of_gang, "SHARD_INDEX": "1", "SHARD_COUNT": "4"})
    write(shard, 3)
    assert read(shard) == (3, "x"), "a shard restarts alone, so its checkpoint needs no other"


def test_program_without_a_place_is_told_what_is_missing() -> None:
    with pytest.raises(CheckpointError, match="set checkpoints of the task"):
        Checkpoints.of({})


def test_image_without_a_library_for_the_store_is_told_what_is_missing() -> None:
    with pytest.raises(Exception, match="Install fsspec and its library"):
        Checkpoints.of({"GANG_CHECKPOINT_URL": "absent://bucket/checkpoints"})


def test_progress_says_when_this_restart_has_written_a_checkpoint(tmp_path: Path) -> None:
    program = "checkpoints().newest(); progress(8)\nif write_it:\n with checkpoints().write(9): pass"
    place = str(tmp_path / "checkpoints")

    first = reported("write_it = True\n" + program, tmp_path, GANG_CHECKPOINT_DIR=place)
    second = reported("write_it = False\n" + program, tmp_path, GANG_CHECKPOINT_DIR=place)

    assert first["checkpoint_at"] > 0
    assert second["checkpoint_at"] is None


# -- the entry point of a rank -----------------------------------------------------------------------------------


def call(action: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(HELPER), action]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=5 * TIMEOUT_S, check=False)


@pytest.mark.parametrize("variable", ["GANG_CHECKPOINT_DIR", "GANG_CHECKPOINT_URL"])
def test_place_that_can_be_written_exists_when_the_program_starts(tmp_path: Path, variable: str) -> None:
    folder = tmp_path / "dag" / "run" / "task"
    place = str(folder) if variable == "GANG_CHECKPOINT_DIR" else f"file://{folder}"

    assert call("prepare", **{variable: place}).returncode == 0
    assert list(folder.iterdir()) == []


def test_ranks_of_one_host_name_may_test_the_place_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = os.remove

    def remove_after_another_rank(path: str) -> None:
        remove(path)
        remove(path)

    monkeypatch.setattr(os, "remove", remove_after_another_rank)
    environ = {"GANG_CHECKPOINT_DIR": str(tmp_path), "HOSTNAME": "node-0"}
    assert gangjobs_rank.prepare(environ) == ""


@pytest.mark.parametrize("variable", ["GANG_CHECKPOINT_DIR", "GANG_CHECKPOINT_URL"])
def test_place_that_cannot_be_written_is_the_error_of_the_rank(tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").write_text("")
    place = f"{tmp_path}/file/checkpoints"
    result = tmp_path / "result"
    environ = {variable: place if variable == "GANG_CHECKPOINT_DIR" else f"file://{place}"}

    assert call("prepare", GANG_RESULT_PATH=str(result), **environ).returncode == 1
    assert "The checkpoints cannot be written to" in json.loads(result.read_text())["error"]


def test_library_that_only_the_program_has_is_no_error() -> None:
    assert call("prepare", GANG_CHECKPOINT_URL="absent://bucket/checkpoints").returncode == 0


def test_files_of_the_user_do_not_hide_the_modules_that_are_needed(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for program in ("gangjobs_rank.py", "gangjobs_result.py"):
        (files / program).write_text((HELPER.parent / program).read_text())
    for name in ("fsspec", "json", "shutil"):
        (files / f"{name}.py").write_text("raise SystemExit('this is the file of the user')")
    command = [sys.executable, str(files / HELPER.name), "prepare"]
    store = {"GANG_CHECKPOINT_URL": f"file://{tmp_path}/checkpoints"}

    assert subprocess.run(command, env=store, timeout=5 * TIMEOUT_S, check=False).returncode == 0
    assert (tmp_path / "checkpoints").is_dir()


@pytest.mark.parametrize("variable", ["GANG_CHECKPOINT_DIR", "GANG_CHECKPOINT_URL"])
def test_checkpoints_of_the_task_are_removed(tmp_path: Path, variable: str) -> None:
    folder = tmp_path / "task"
    place = str(folder) if variable == "GANG_CHECKPOINT_DIR" else f"file://{folder}"
    write(Checkpoints(str(folder), 0, 1), 5)

    for _ in range(2):
        assert call("remove", **{variable: place}).returncode == 0
    assert list(tmp_path.iterdir()) == []


# -- The helper that writes large results, run as on a rank: in a process whose Python does not have this
#    provider --------------------------------------------------------------------------------------------------------

LARGE = "x" * 5000
RESULT_HELPER = Path(gangjobs_result.__file__)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "GANG_RESULT_PATH": str(tmp_path / "result"),
        "GANG_RESULT_STORAGE": f"file://{tmp_path}/results",
        "GANG_ATTEMPT": "2",
        "JOB_COMPLETION_INDEX": "7",
    }


def pipe(content: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Pipe a result into the program with the standard library only."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(RESULT_HELPER)],
        input=content,
        env=environ,
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=False,
    )


def written(environ: dict[str, str]) -> Any:
    return json.loads(Path(environ["GANG_RESULT_PATH"]).read_text())


def result_of(environ: dict[str, str]) -> Any:
    return read_result(written(environ), storage=environ["GANG_RESULT_STORAGE"])


def test_small_result_is_written_as_it_is(environ: dict[str, str]) -> None:
    gangjobs_result.write_result({"rows": 3}, environ)
    assert written(environ) == {"rows": 3}


@pytest.mark.parametrize("size", [4095, 4096], ids=["largest small one", "smallest large one"])
def test_result_above_the_limit_of_the_kubelet_is_stored(environ: dict[str, str], size: int) -> None:
    value = "x" * (size - 2)
    gangjobs_result.write_result(value, environ)
    assert is_stored(written(environ)) == (size > 4095)
    assert result_of(environ) == value


def test_object_is_named_by_attempt_and_rank(environ: dict[str, str], tmp_path: Path) -> None:
    gangjobs_result.write_result(LARGE, environ)
    path = tmp_path / "results" / "attempt-2" / "rank-00007.json"
    assert written(environ) == {"gang_result": f"file://{path}", "bytes": 5002}
    assert list(path.parent.iterdir()) == [path]


def test_program_writes_what_is_piped_into_it(environ: dict[str, str]) -> None:
    assert pipe(json.dumps([LARGE]), environ).returncode == 0
    assert result_of(environ) == [LARGE]


@pytest.mark.parametrize("text", [LARGE, LARGE + "\r\nend\r\n"], ids=["one line", "line ends of Windows"])
def test_text_that_is_not_json_stays_text(environ: dict[str, str], text: str) -> None:
    assert pipe(text, environ).returncode == 0
    assert result_of(environ) == text


def test_object_that_is_not_the_one_that_the_rank_wrote_is_no_result(environ: dict[str, str]) -> None:
    gangjobs_result.write_result(LARGE, environ)
    path = written(environ)["gang_result"].removeprefix("file://")
    os.truncate(path, 4000)
    with pytest.raises(ValueError, match=r"rank-00007.json has 4000 bytes, and its rank wrote 5002"):
        result_of(environ)


REFUSED = {
    "no storage": ("", "set result_storage of the task"),
    "protocol that needs a library": ("s3://aws_default@bucket/results", "Install fsspec and its library"),
    "file in the place of the folder": ("file:///dev/null/results", "Not a directory"),
}


@pytest.mark.parametrize(("folder", "reason"), REFUSED.values(), ids=REFUSED)
def test_storage_that_cannot_be_written_is_an_error_that_says_why(
    environ: dict[str, str], folder: str, reason: str
) -> None:
    done = pipe(LARGE, {**environ, "GANG_RESULT_STORAGE": folder})
    assert (done.returncode, reason in done.stderr) == (1, True), done.stderr


def test_other_protocols_are_written_by_fsspec_without_the_id_of_the_connection(environ: dict[str, str]) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    environ["GANG_RESULT_STORAGE"] = "memory://an_id@results/d/run"
    gangjobs_result.write_result([LARGE], environ)
    assert written(environ)["gang_result"] == "memory://an_id@results/d/run/attempt-2/rank-00007.json"
    assert json.loads(MemoryFileSystem().cat("/results/d/run/attempt-2/rank-00007.json")) == [LARGE]


@pytest.mark.parametrize("folder", ["file:///dev/null/results", "nosuch://bucket"])
def test_check_finds_a_storage_that_cannot_be_written(environ: dict[str, str], folder: str) -> None:
    with pytest.raises((OSError, gangjobs_result.StorageError)):
        gangjobs_result.check_storage({**environ, "GANG_RESULT_STORAGE": folder})
    gangjobs_result.check_storage(environ)
