"""The versioned store: versions only increase, history returns past states, and no acknowledged write is lost."""

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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.journal import LOG, SNAPSHOT, CorruptJournalError, Journal, UnwritableJournalError
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS, PODS
from gangjobs_sandbox.store import Event, EventType, Expired, Store, objects_copy
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# -- The versioned store: versions only increase, history returns past states, and stored objects never change -------

Obj = dict[str, Any]


def thing(name: str = "a", namespace: str = "n", *, labels: dict[str, str] | None = None, value: int = 0) -> Obj:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels or {}}, "value": value}


def test_versions_are_shared_by_all_resources() -> None:
    store = Store()
    store.put(PODS, thing())
    assert store.put(CONFIGMAPS, thing()).revision == 2


def test_history_is_bounded() -> None:
    store = Store(window=3)
    for value in range(10):
        store.put(PODS, thing(value=value))
    assert [event.revision for event in store.events_since(PODS, 7)] == [8, 9, 10]
    with pytest.raises(Expired, match=r"too old resource version: 6 \(7\)"):
        store.events_since(PODS, 6)


def test_quiet_resource_keeps_its_history() -> None:
    store = Store(window=2)
    store.put(CONFIGMAPS, thing())
    for value in range(10):
        store.put(PODS, thing(value=value))
    assert len(store.events_since(CONFIGMAPS, 0)) == 1


def test_dropped_history_is_expired() -> None:
    store = Store()
    store.put(PODS, thing())
    store.compact_history(PODS)
    assert store.events_since(PODS, 1) == []
    with pytest.raises(Expired):
        store.events_since(PODS, 0)


def test_observer_that_writes_gets_events_in_order() -> None:
    store = Store()
    seen: list[int] = []

    def answer(event: Event) -> None:
        if event.resource is PODS:
            store.put(CONFIGMAPS, thing(value=event.obj["value"]))

    store.observe(answer)
    store.observe(lambda event: seen.append(event.revision))
    store.put(PODS, thing())
    store.put(PODS, thing(value=1))
    assert seen == [1, 2, 3, 4]


def test_unsubscribed_observer_gets_no_events() -> None:
    store = Store()
    seen: list[Event] = []
    stop = store.observe(seen.append)
    stop()
    stop()
    store.put(PODS, thing())
    assert seen == []


def test_object_is_encoded_once() -> None:
    stored = Store().put(PODS, thing())
    assert stored.json is stored.json
    assert stored.json_as("v2", dict) is stored.json_as("v2", dict)


def test_copy_is_deep() -> None:
    original = {"a": [{"b": 1}], "c": {"d": []}}
    copied = objects_copy(original)
    assert copied == original
    copied["a"][0]["b"] = 2
    copied["c"]["d"].append(1)
    assert original == {"a": [{"b": 1}], "c": {"d": []}}


KEYS = st.sampled_from([(namespace, name) for namespace in "mn" for name in "abc"])


class StoreAgainstDict(RuleBasedStateMachine):
    """Compares the store with a plain dict, and with the state that the store's history gives."""

    @initialize(window=st.integers(1, 6))
    def start(self, window: int) -> None:
        self.store = Store(window=window)
        self.model: dict[tuple[str, str], Obj] = {}
        self.states: dict[int, dict[tuple[str, str], Obj]] = {0: {}}
        self.observed: dict[tuple[str, str], Obj] = {}
        self.store.observe(self._follow)

    def _follow(self, event: Event) -> None:
        if event.resource is not PODS:
            return
        key = event.obj["metadata"]["namespace"], event.obj["metadata"]["name"]
        assert (event.old is None) is (event.type is EventType.ADDED)
        assert event.old == self.observed.get(key)
        if event.type is EventType.DELETED:
            del self.observed[key]
        else:
            self.observed[key] = event.obj

    def _record_revision(self) -> None:
        self.states[self.store.revision] = dict(self.model)

    @rule(key=KEYS, value=st.integers(0, 3), labels=st.sampled_from([{}, {"job-name": "x"}, {"job-name": "y"}]))
    def put(self, key: tuple[str, str], value: int, labels: dict[str, str]) -> None:
        self.model[key] = self.store.put(PODS, thing(key[1], key[0], value=value, labels=labels)).obj
        self._record_revision()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        self.store.remove(PODS, *key)
        del self.model[key]
        self._record_revision()

    @rule()
    def other_resource(self) -> None:
        self.store.put(CONFIGMAPS, thing())
        self._record_revision()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert [s.obj for s in self.store.list(PODS)] == [self.model[key] for key in sorted(self.model)]
        assert self.observed == self.model

    @invariant()
    def index_agrees(self) -> None:
        found = self.store.list(PODS, None, selectors.parse("job-name=x"))
        expected = [o for _, o in sorted(self.model.items()) if o["metadata"]["labels"].get("job-name") == "x"]
        assert [s.obj for s in found] == expected

    @invariant()
    def every_kept_moment_can_be_seen_again(self) -> None:
        for revision, state in self.states.items():
            try:
                past = self.store.list_at(PODS, revision)
            except Expired:
                continue
            assert [s.obj for s in past] == [state[key] for key in sorted(state)]

    @invariant()
    def replayed_history_gives_the_present(self) -> None:
        for revision, state in self.states.items():
            try:
                events = self.store.events_since(PODS, revision)
            except Expired:
                continue
            replayed = dict(state)
            for event in events:
                key = event.obj["metadata"]["namespace"], event.obj["metadata"]["name"]
                replayed.pop(key, None)
                if event.type is not EventType.DELETED:
                    replayed[key] = event.obj
            assert replayed == self.model


StoreAgainstDict.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
TestStoreAgainstDict = StoreAgainstDict.TestCase


# -- Durability of the store: kills, torn lines, an interrupted snapshot, and a second owner -------------------------


def small_thing(name: str = "a", value: int = 0) -> dict[str, Any]:
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
        store.put(CONFIGMAPS, small_thing(f"t{value}", value))
    store.put(CONFIGMAPS, small_thing("t0", 100))
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
    store.put(CONFIGMAPS, small_thing())
    store.remove(CONFIGMAPS, "n", "a")
    store.close()
    again = Store(Journal(tmp_path))
    assert again.put(CONFIGMAPS, small_thing()).revision == 3
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
    store.put(CONFIGMAPS, small_thing("late"))
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
    store.put(CONFIGMAPS, small_thing("last"))
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
            store.put(CONFIGMAPS, small_thing(f"t{value}", value))
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
        store.put(CONFIGMAPS, small_thing("late"))
    assert (store.revision, contents(store)) == state
    store.put(CONFIGMAPS, small_thing("later"))
    now = store.revision, contents(store)
    store.close()
    assert reopened(tmp_path) == now
    assert "later" in now[1]


def test_failed_snapshot_keeps_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(Journal(tmp_path, log_bytes_max=1000))
    value = 0
    while (tmp_path / LOG).stat().st_size < 900:
        store.put(CONFIGMAPS, small_thing(f"t{value}", value))
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
