"""The versioned store: versions only increase, history returns past states, and stored objects never change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.resources import CONFIGMAPS, PODS
from gangjobs_sandbox.store import Event, EventType, Expired, Store, objects_copy
from tests.examples import examples

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
