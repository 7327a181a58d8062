"""Whole logs of all ranks are written to a storage, one object for each, and a storage that fails is found early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.tracking.follow import follow
from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes
from airflow_provider_gangjobs.tracking.logs.store import store_logs
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import PODS
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

    from tests.provider.task_runner import TaskMaker

SCRIPT = 'seq -f "rank $RANK %0390g" 3000; printf 1 > "$GANG_RESULT_PATH"'


def test_whole_logs_of_all_ranks_are_stored_and_their_addresses_are_in_the_log(
    task: TaskMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = task(SCRIPT, log_storage=f"file://{tmp_path}", log_limit=2**16)
    train.execute()

    files = {path.name: path for path in tmp_path.rglob("*.log")}
    log = capsys.readouterr().out
    assert sorted(files) == ["rank-00000.log", "rank-00001.log"]
    for rank, path in enumerate(files[name] for name in sorted(files)):
        assert path.read_text() == "".join(f"rank {rank} {number:0390}\n" for number in range(1, 3001))
        assert path.relative_to(tmp_path).parts[:3] == ("d", train.run_id, "train")
        assert f"[rank {rank}] (the whole log is stored at file://{path})" in log
    assert "has the whole log)" in log
    assert not list(tmp_path.rglob("write-test"))


WRONG: dict[str, Any] = {
    "a file in the place of the folder": ("file://{path}/file", "cannot be written"),
    "a protocol that is not installed": ("nosuch://bucket/logs", "cannot be written"),
}


@pytest.mark.parametrize(("url", "problem"), WRONG.values(), ids=WRONG)
def test_storage_that_cannot_be_written_is_found_before_the_gang_is_submitted(
    task: TaskMaker, tmp_path: Path, url: str, problem: str
) -> None:
    (tmp_path / "file").write_text("")
    train = task(SCRIPT, log_storage=url.format(path=tmp_path))

    with pytest.raises(AirflowFailException, match=problem):
        train.execute()

    assert train.jobs == []


class FailingStorage:
    """A storage that has room for the log of one rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, name: str) -> str:
        return f"storage/{name}"

    def open(self, name: str) -> BinaryIO:
        if not name.endswith("rank-00001.log"):
            raise OSError("no space left")
        return (self._folder / "one").open("wb")


@in_virtual_time
async def test_log_of_a_deleted_pod_that_is_not_stored_has_a_note(plane, tmp_path):
    ref = plane.submit(workers=2)
    await plane.until(lambda: plane.running_ranks() == 2)
    pod = plane.pod("train", 0)["metadata"]["name"]
    plane.logs |= {one["metadata"]["name"]: "said\n" for one in plane.pods()}
    plane.finish("train", 1, exit_code=1)
    await follow(plane.client, ref, report=lambda _: None)
    lines: list[str] = []
    outcomes = await read_outcomes(plane.client, ref)
    await store_logs(plane.client, ref, FailingStorage(tmp_path), (), lines.extend, outcomes)
    assert f"[rank 0] (the log is not stored: pod {pod} was deleted, and its log with it)" in lines


@in_virtual_time
async def test_storage_that_fails_later_is_reported_and_the_other_logs_are_stored(plane, tmp_path):
    ref = plane.submit(workers=3)
    await plane.until(lambda: plane.running_ranks() == 3)
    plane.logs |= {pod["metadata"]["name"]: "said\n" for pod in plane.pods()}
    lines: list[str] = []
    addresses = await store_logs(plane.client, ref, FailingStorage(tmp_path), (), lines.extend)
    assert list(addresses.values()) == ["storage/train/rank-00001.log"]
    assert (tmp_path / "one").read_bytes() == b"said\n"
    assert sorted(lines) == [
        "[rank 0] (the log is not stored completely as train/rank-00000.log: OSError: no space left)",
        "[rank 1] (the whole log is stored at storage/train/rank-00001.log)",
        "[rank 2] (the log is not stored completely as train/rank-00002.log: OSError: no space left)",
    ]


class FolderStorage:
    """A storage that has room for everything, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, name: str) -> str:
        return f"storage/{name}"

    def open(self, name: str) -> BinaryIO:
        return (self._folder / name.replace("/", "_")).open("wb")


@in_virtual_time
async def test_each_pod_of_a_rank_has_an_object_of_its_own(plane, tmp_path):
    ref = plane.submit(workers=1, backoffLimit=1)
    await plane.until(lambda: plane.running_ranks() == 1)
    first = plane.pod("train", 0)["metadata"]["name"]
    plane.finish("train", 0, exit_code=1)
    await plane.until(lambda: len(plane.pods()) == 2 and plane.running_ranks() == 1)
    plane.logs |= {one["metadata"]["name"]: f"{one['metadata']['name'] == first}\n" for one in plane.pods()}
    addresses = await store_logs(plane.client, ref, FolderStorage(tmp_path), (), lambda _: None)
    assert len(set(addresses.values())) == 2
    assert (tmp_path / "train_rank-00000.log").read_text() == "False\n"
    assert (tmp_path / f"train_rank-00000.{first}.log").read_text() == "True\n"


EVICTED = {"phase": "Failed", "reason": "Evicted"}
REMOVED = "the kubelet removes the containers of a pod that it evicts, with their logs (GET "


@in_virtual_time
async def test_object_of_a_log_that_was_removed_says_why_it_has_no_lines(plane, tmp_path):
    ref = plane.submit(workers=1)
    await plane.until(lambda: plane.running_ranks() == 1)
    name = plane.pod("train", 0)["metadata"]["name"]
    plane.registry.patch(PODS, name, "default", {"status": EVICTED}, PatchKind.MERGE, subresource="status")
    lines: list[str] = []
    assert await store_logs(plane.client, ref, FolderStorage(tmp_path), (), lines.extend) == {}
    stored = (tmp_path / "train_rank-00000.log").read_text()
    assert stored.startswith(f"[rank 0] (left out here: the rest of the log could not be read: {REMOVED}")
    assert lines[0].startswith(f"[rank 0] (the log is not stored completely as train/rank-00000.log: {REMOVED}")


@in_virtual_time
async def test_object_has_the_lines_that_were_read_before_the_log_was_lost(plane, tmp_path):
    ref = plane.submit(workers=1)
    await plane.until(lambda: plane.running_ranks() == 1)
    plane.logs[plane.pod("train", 0)["metadata"]["name"]] = "one\ntw" + "o" * 100_000
    plane.arm("drop-after", method="GET", path="/log", chunks=1)
    plane.arm("status", method="GET", path="/log", code=403)
    await store_logs(plane.client, ref, FolderStorage(tmp_path), (), lambda lines: None)
    one, two, note = (tmp_path / "train_rank-00000.log").read_text().splitlines()
    assert (one, two.strip("o")) == ("one", "tw")
    assert note.startswith("[rank 0] (left out here: the rest of the log could not be read: GET ")


@in_virtual_time
async def test_log_before_a_restart_that_is_gone_does_not_hide_the_log_after_it(plane, tmp_path):
    ref = plane.submit(workers=1)
    await plane.until(lambda: plane.running_ranks() == 1)
    name = plane.pod("train", 0)["metadata"]["name"]
    main = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 1, "state": {"running": {}}}
    status = {"containerStatuses": [main]}
    plane.registry.patch(PODS, name, "default", {"status": status}, PatchKind.MERGE, subresource="status")
    plane.logs[name] = "second\n"
    await store_logs(plane.client, ref, FolderStorage(tmp_path), (), lambda lines: None)
    note, line = (tmp_path / "train_rank-00000.log").read_text().splitlines()
    assert note.startswith("[rank 0] (left out here: the log before the last restart could not be read: ")
    assert line == "second"
