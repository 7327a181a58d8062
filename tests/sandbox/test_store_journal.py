"""Durability of the store: kills, torn lines, an interrupted snapshot, and a second owner."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangjobs_sandbox.journal import LOG, SNAPSHOT, CorruptJournalError, Journal, UnwritableJournalError
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS
from gangjobs_sandbox.store import Expired, Store
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def thing(name: str = "a", value: int = 0) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n"}, "value": value}


def contents(store: Store) -> dict[str, Any]:
    return {stored.obj["metadata"]["name"]: stored.obj for stored in store.list(CONFIGMAPS)}


def reopened(folder: Path) -> tuple[int, dict[str, Any]]:
    store = Store(Journal(folder))
    state = store.revision, contents(store)
    store.close()
    return state


def written(folder: Path, *, log_bytes_max: int = 10**9, count: int = 5) -> tuple[int, dict[str, Any]]:
    """A closed store with some changes, including removals."""
    store = Store(Journal(folder, log_bytes_max=log_bytes_max))
    for value in range(count):
        store.put(CONFIGMAPS, thing(f"t{value}", value))
    store.put(CONFIGMAPS, thing("t0", 100))
    store.remove(CONFIGMAPS, "n", "t1")
    state = store.revision, contents(store)
    store.close()
    return state


@pytest.mark.parametrize("log_bytes_max", [10**9, 200, 1], ids=["log only", "a few snapshots", "a snapshot each time"])
def test_state_is_restored(tmp_path: Path, log_bytes_max: int) -> None:
    assert written(tmp_path, log_bytes_max=log_bytes_max) == reopened(tmp_path)


def test_versions_continue_after_a_restart(tmp_path: Path) -> None:
    """This includes a newest version that was a removal and that a snapshot has dropped."""
    store = Store(Journal(tmp_path, log_bytes_max=1))
    store.put(CONFIGMAPS, thing())
    store.remove(CONFIGMAPS, "n", "a")
    store.close()
    again = Store(Journal(tmp_path))
    assert again.put(CONFIGMAPS, thing()).revision == 3
    again.close()


def test_history_of_the_log_is_restored(tmp_path: Path) -> None:
    written(tmp_path)
    store = Store(Journal(tmp_path))
    assert len(store.events_since(CONFIGMAPS, 0)) == 7
    store.close()


def test_history_before_a_snapshot_is_expired(tmp_path: Path) -> None:
    written(tmp_path, log_bytes_max=1)
    store = Store(Journal(tmp_path))
    with pytest.raises(Expired):
        store.events_since(CONFIGMAPS, 1)
    store.close()


@pytest.mark.parametrize(
    "torn", [b"[9", b'[8,"configmaps","n","x",{"metadata":{"na', b"\xff"], ids=["short", "long", "no text"]
)
def test_incomplete_last_line_is_ignored(tmp_path: Path, torn: bytes) -> None:
    state = written(tmp_path)
    with (tmp_path / LOG).open("ab") as file:
        file.write(torn)
    assert reopened(tmp_path) == state
    assert reopened(tmp_path) == state


def test_store_can_be_written_after_a_torn_line(tmp_path: Path) -> None:
    written(tmp_path)
    with (tmp_path / LOG).open("ab") as file:
        file.write(b"[9")
    store = Store(Journal(tmp_path))
    store.put(CONFIGMAPS, thing("late"))
    store.close()
    assert "late" in reopened(tmp_path)[1]


def test_damage_before_the_last_line_is_reported(tmp_path: Path) -> None:
    written(tmp_path)
    lines = (tmp_path / LOG).read_bytes().splitlines(keepends=True)
    (tmp_path / LOG).write_bytes(b"".join([lines[0], b"garbage\n", *lines[2:]]))
    with pytest.raises(CorruptJournalError, match=rf"{LOG} is damaged at line 2"):
        Store(Journal(tmp_path))


def test_crash_between_snapshot_and_truncation_duplicates_nothing(tmp_path: Path) -> None:
    state = written(tmp_path)
    log = (tmp_path / LOG).read_bytes()
    store = Store(Journal(tmp_path, log_bytes_max=1))
    store.put(CONFIGMAPS, thing("last"))
    state = store.revision, contents(store)
    store.close()
    (tmp_path / LOG).write_bytes(log)
    assert reopened(tmp_path) == state


def test_second_owner_is_refused(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    with pytest.raises(RuntimeError, match="in use by another sandbox"):
        Journal(tmp_path)
    store.close()
    Journal(tmp_path).close()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    written(folder)
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / LOG).stat().st_mode & 0o077 == 0


@settings(max_examples=examples(30), deadline=None)
@given(cut=st.integers(0, 2000), log_bytes_max=st.sampled_from([10**9, 300]))
def test_truncated_log_restores_a_past_state(
    tmp_path_factory: pytest.TempPathFactory, cut: int, log_bytes_max: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    store = Store(Journal(folder, log_bytes_max=log_bytes_max))
    moments = [contents(store)]
    for value in range(8):
        if value % 3 == 2:
            store.remove(CONFIGMAPS, "n", f"t{value - 1}")
        else:
            store.put(CONFIGMAPS, thing(f"t{value}", value))
        moments.append(contents(store))
    store.close()
    log = folder / LOG
    log.write_bytes(log.read_bytes()[: max(0, log.stat().st_size - cut)])
    assert reopened(folder)[1] in moments
    assert (folder / SNAPSHOT).exists() is (log_bytes_max == 300)


WRITER = """
import sys
from pathlib import Path
from gangjobs_sandbox.journal import Journal
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.store import Store
registry = Registry(Store(Journal(Path(sys.argv[1]), log_bytes_max=20_000)))
number = 0
while True:
    registry.create("configmaps", {"metadata": {"name": f"c{number}"}, "data": {"k": "v" * 100}})
    print(number, flush=True)
    number += 1
"""


def test_killed_process_loses_no_acknowledged_write(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        acknowledged = [int(process.stdout.readline()) for _ in range(150)]
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().split("\n") if line]
    store = Store(Journal(tmp_path))
    registry = Registry(store)
    names = {obj["metadata"]["name"] for obj in registry.list("configmaps")}
    assert {f"c{number}" for number in acknowledged} <= names
    store.close()


@contextmanager
def full_disk_at(size: int) -> Iterator[None]:
    """Limit the file size: the part that fits is written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 10], ids=["no room", "room for a part of the line"])
def test_change_that_cannot_be_written_is_not_applied(tmp_path: Path, room: int) -> None:
    state = written(tmp_path)
    store = Store(Journal(tmp_path))
    with (
        full_disk_at((tmp_path / LOG).stat().st_size + room),
        pytest.raises(UnwritableJournalError, match="cannot be writ"),
    ):
        store.put(CONFIGMAPS, thing("late"))
    assert (store.revision, contents(store)) == state
    store.put(CONFIGMAPS, thing("later"))
    now = store.revision, contents(store)
    store.close()
    assert reopened(tmp_path) == now
    assert "later" in now[1]


def test_failed_snapshot_keeps_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(Journal(tmp_path, log_bytes_max=1000))
    value = 0
    while (tmp_path / LOG).stat().st_size < 900:
        store.put(CONFIGMAPS, thing(f"t{value}", value))
        value += 1
    with full_disk_at(1020):
        while (tmp_path / LOG).stat().st_size <= 1000:
            store.put(CONFIGMAPS, {"metadata": {"name": f"t{value}", "namespace": "n"}})
            value += 1
    state = store.revision, contents(store)
    store.close()
    assert reopened(tmp_path) == state
    assert [path.name for path in tmp_path.glob("*.new")] == []
    assert "The log keeps growing" in caplog.text
