"""A task keeps its checkpoints over attempts and retries, on an embedded cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.exceptions import AppFailed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.provider.task_runner import TaskMaker

COUNT = """
import json, os, sys, time
from gangjobs_rank import checkpoints
newest = checkpoints().newest()
first = 0 if newest is None else json.loads((newest.folder / "state").read_text())
for step in range(first + 1, first + 4):
    with checkpoints().write(step) as folder:
        (folder / "state").write_text(json.dumps(step))
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump([first, first + 3], result)
if os.path.exists("/disk/fails"):
    while (newest := checkpoints().newest()) is None or newest.step < step:
        time.sleep(0.05)
    sys.exit(1)
"""
"""Count three steps, from the newest checkpoint on. While the file exists, the program fails after all ranks have
written the last checkpoint, because the first failure ends the other ranks."""


def on_disk(folder: Path, **parameters: Any) -> dict[str, Any]:
    """The parameters of a task whose ranks keep their checkpoints in a folder of this machine."""
    return {
        "command": ["python3", "/gang/files/count.py"],
        "files": {"count.py": COUNT},
        "volumes": [{"name": "disk", "hostPath": {"path": str(folder)}}],
        "volume_mounts": [{"name": "disk", "mountPath": "/disk"}],
        "checkpoints": "/disk/checkpoints",
        "results": "all",
        **parameters,
    }


def test_retry_goes_on_from_the_newest_checkpoint(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_disk(tmp_path))
    (tmp_path / "fails").touch()
    with pytest.raises(AppFailed):
        train.execute()
    (tmp_path / "fails").unlink()

    assert train.execute() == [[3, 6], [3, 6]]


def test_another_run_of_the_task_begins_anew(task: TaskMaker, tmp_path: Path) -> None:
    for _ in range(2):
        assert task("", **on_disk(tmp_path)).execute() == [[0, 3], [0, 3]]


def test_task_that_is_cleared_after_its_success_goes_on_from_its_checkpoints(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_disk(tmp_path))
    train.execute()
    train.clear()

    assert train.execute() == [[3, 6], [3, 6]]


def test_mapping_and_function_have_the_same_place(task: TaskMaker, tmp_path: Path) -> None:
    parameters = on_disk(tmp_path, checkpoints={"volume": "disk", "path": "checkpoints"})
    train = task("", **parameters)
    train.execute()

    assert (tmp_path / "checkpoints" / "d" / train.run_id / "train" / "step-000000000003").is_dir()


def test_place_that_cannot_be_written_is_the_error_of_the_first_rank(task: TaskMaker, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(AppFailed, match=r"The checkpoints cannot be written to /disk/checkpoints/d/.*Not a directory"):
        task("", **on_disk(tmp_path)).execute()


def test_object_store_without_a_library_is_found_before_the_gang_is_submitted(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_disk(tmp_path, checkpoints="nosuch://bucket/a"))
    with pytest.raises(AirflowFailException, match="cannot be written"):
        train.execute()
    assert train.jobs == []


def test_ranks_know_the_url_of_an_object_store(task: TaskMaker, tmp_path: Path) -> None:
    attach(protocol="memory", fs=MemoryFileSystem())  # for the check of the worker
    show = ["sh", "-c", 'printf "\\"%s\\"" "$GANG_CHECKPOINT_URL" > "$GANG_RESULT_PATH"']
    train = task("", **on_disk(tmp_path, command=show, checkpoints="memory://bucket/a"))

    assert train.execute()[0] == f"memory://bucket/a/d/{train.run_id}/train"
