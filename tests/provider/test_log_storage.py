"""Whole logs of all ranks are written to a storage, one object for each, and a storage that fails is found early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.tracking.logs.store import store_logs
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

    with pytest.raises(InvalidGangSpec, match=problem):
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
