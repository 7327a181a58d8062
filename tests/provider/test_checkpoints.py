"""A task keeps its checkpoints over attempts and retries, on an embedded cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from gangjobs_sandbox.resources import CONFIGMAPS, NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider_gangjobs.gang.identity import GangRef
    from gangjobs_sandbox.thread import SandboxThread
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

    assert len(list((tmp_path / "checkpoints" / "d" / train.run_id / "train").glob("*/step-000000000003"))) == 1


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

    folder = f"memory://bucket/a/d/{train.run_id}/train/installation-"
    assert train.execute()[0].startswith(folder)


# -- whose folder it is --------------------------------------------------------------------------------------------


def steps_in(folder: Path) -> list[str]:
    """Return the folders below a place that have a checkpoint."""
    return sorted({step.parent.relative_to(folder).as_posix() for step in folder.rglob("step-*")})


def test_retry_and_clear_have_the_folder_of_the_first_try(task: TaskMaker, tmp_path: Path) -> None:
    train = task("", **on_disk(tmp_path, on_finish="delete"))
    train.execute()
    folders = steps_in(tmp_path)
    train.clear()

    assert train.execute() == [[3, 6], [3, 6]]
    assert steps_in(tmp_path) == folders


def test_task_without_an_installation_removes_no_folder_of_another_airflow(
    task: TaskMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__INSTALLATION_ID", "production")
    production = task("", **on_disk(tmp_path))
    production.execute()
    (folder,) = steps_in(tmp_path)
    monkeypatch.setenv("AIRFLOW__GANGJOBS__INSTALLATION_ID", "")
    laptop = task("", **on_disk(tmp_path, keep_checkpoints=False))
    laptop.run_id = production.run_id

    assert laptop.execute() == [[0, 3], [0, 3]]
    assert steps_in(tmp_path) == [folder]
    assert "/installation-production-" in folder


@pytest.fixture
def run_id(connection: str, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that submits a gang of one rank with an id, and returns the result of the rank."""
    hook = GangJobHook(connection)

    async def follow(ref: GangRef) -> None:
        await hook.afollow(ref)
        await informers().aclose()

    def run(submission_id: str, **parameters: Any) -> Any:
        given = {name: value for name, value in on_disk(tmp_path, **parameters).items() if name != "results"}
        spec = GangSpec(image="i", workers=1, resources={"cpu": "100m"}, **given)
        ref = hook.submit(spec, submission_id=submission_id).ref
        asyncio.run(follow(ref))
        return hook.outcomes(ref)[0].result

    return run


def test_equal_submission_id_in_another_namespace_begins_anew(
    run_id: Callable[..., Any], embedded: SandboxThread, tmp_path: Path
) -> None:
    embedded.call(lambda it: it.registry.create(NAMESPACES, {"metadata": {"name": "team-b"}}))
    run_id("nightly")

    assert run_id("nightly", namespace="team-b", keep_checkpoints=False) == [0, 3]
    assert len(steps_in(tmp_path)) == 1, "it has removed its own folder only"


@pytest.mark.parametrize("keeps_job", [False, True])
def test_submission_id_that_was_deleted_begins_anew(
    run_id: Callable[..., Any], connection: str, *, keeps_job: bool
) -> None:
    name = f"anew-{keeps_job}"
    run_id(name)
    GangJobHook(connection).delete_submission(name, job=not keeps_job)

    assert run_id(name, command=["sh", "-c", "python3 /gang/files/count.py # with other parameters"]) == [0, 3]


def test_submission_id_that_has_failed_goes_on(run_id: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    run_id("mended")
    (tmp_path / "fails").unlink()

    assert run_id("mended") == [3, 6]


def test_variables_of_a_config_map_let_no_foreign_folder_be_removed(
    task: TaskMaker, tmp_path: Path, embedded: SandboxThread
) -> None:
    data = {"GANG_CHECKPOINT_DIR": "/disk/foreign", "GANG_CHECKPOINT_URL": "file:///disk/foreign"}
    data |= {"GANG_KEEP_CHECKPOINTS": "0"}
    foreign = {"metadata": {"name": "foreign"}, "data": data}
    embedded.call(lambda it: it.registry.create(CONFIGMAPS, foreign, "default"))
    (tmp_path / "foreign").mkdir()
    attach(protocol="memory", fs=MemoryFileSystem())
    given = {"env_from": [{"configMapRef": {"name": "foreign"}}], "command": ["true"], "workers": 1, "restarts": 1}
    places: list[dict[str, Any]] = [{"checkpoints": None}, {"checkpoints": "/disk/own"}]
    places += [{"checkpoints": place, "keep_checkpoints": False} for place in ("/disk/other", "memory://bucket/a")]
    for place in places:
        task("", **on_disk(tmp_path, **given, **place)).execute()

    assert (tmp_path / "foreign").is_dir()
    assert list((tmp_path / "own").glob("d/*/train/*"))
    assert not list((tmp_path / "other").glob("d/*/train/*"))
