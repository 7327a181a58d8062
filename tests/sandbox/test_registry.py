"""The registry as controllers use it: in process, without HTTP. The conformance tests check what clients see."""

from __future__ import annotations

import copy
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import Event, Registry
from gangjobs_sandbox.resources import CONFIGMAPS, EVENTS, JOBS, NAMESPACES, PODS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

Obj = dict[str, Any]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry(clock: VirtualClock) -> Registry:
    return Registry(clock=clock, rng=random.Random(1))


def pod(name: str = "a", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "x:1"}], **spec}}


def job(name: str = "a", **spec: Any) -> Obj:
    inner = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x:1"}]}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": inner}, **spec}}


@contextmanager
def refusal(code: int) -> Iterator[None]:
    with pytest.raises(StatusError) as caught:
        yield
    assert caught.value.code == code


def test_resource_may_be_named_in_three_ways(registry: Registry) -> None:
    created = registry.create("jobs", job())
    assert registry.get("jobs.batch", "a", "default") is registry.get(JOBS, "a", "default") is created


def test_same_seed_gives_the_same_names_and_uids(clock: VirtualClock) -> None:
    made = [
        Registry(clock=clock, rng=random.Random(7)).create(PODS, pod() | {"metadata": {"generateName": "p-"}})[
            "metadata"
        ]
        for _ in range(2)
    ]
    assert made[0] == made[1]


def test_arguments_are_not_changed(registry: Registry) -> None:
    sent = job()
    before = copy.deepcopy(sent)
    registry.create(JOBS, sent)
    assert sent == before


def test_observer_gets_old_and_new_object(registry: Registry) -> None:
    created = registry.create(CONFIGMAPS, {"metadata": {"name": "a"}})
    heard: list[Event] = []
    registry.observe(heard.append)
    changed = registry.patch(CONFIGMAPS, "a", "default", {"data": {"k": "v"}})
    registry.delete(CONFIGMAPS, "a", "default")
    assert [event.type for event in heard] == ["MODIFIED", "DELETED"]
    assert (heard[0].old, heard[0].obj, heard[1].old) == (created, changed, changed)


def test_refused_write_is_not_observed(registry: Registry) -> None:
    heard: list[Event] = []
    registry.observe(heard.append)
    with refusal(422):
        registry.create(PODS, pod(containers=[]))
    registry.create(PODS, pod(), dry_run=True)
    assert heard == []


def test_repeated_fact_is_one_event(registry: Registry, clock: VirtualClock) -> None:
    involved = registry.create(PODS, pod())
    for _ in range(3):
        registry.record_event(involved, "Warning", "FailedScheduling", "no room", "scheduler")
        clock.advance(10)
    registry.record_event(involved, "Normal", "Scheduled", "on n1", "scheduler")
    events = registry.list(EVENTS, "default")
    assert sorted((event["reason"], event["count"]) for event in events) == [("FailedScheduling", 3), ("Scheduled", 1)]
    failed = next(event for event in events if event["count"] == 3)
    assert (failed["firstTimestamp"], failed["lastTimestamp"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:20Z")
    assert failed["involvedObject"]["uid"] == involved["metadata"]["uid"]


def test_fact_is_recorded_again_after_its_event_was_deleted(registry: Registry) -> None:
    involved = registry.create(PODS, pod())
    registry.record_event(involved, "Normal", "R", "m", "c")
    registry.delete(EVENTS, registry.list(EVENTS)[0]["metadata"]["name"], "default")
    registry.record_event(involved, "Normal", "R", "m", "c")
    assert [event["count"] for event in registry.list(EVENTS)] == [1]


def test_event_in_a_terminating_namespace_is_dropped(registry: Registry) -> None:
    registry.create(NAMESPACES, {"metadata": {"name": "n"}})
    involved = registry.create(PODS, pod(), "n")
    registry.delete(NAMESPACES, "n")
    registry.record_event(involved, "Normal", "R", "m", "c")
    assert registry.list(EVENTS) == []


def test_objects_are_stored_under_the_preferred_version() -> None:
    registry = Registry(release="1.37")
    template = {"name": "t", "schedulingPolicy": {"basic": {}}}
    sent = {
        "apiVersion": "scheduling.k8s.io/v1alpha3",
        "metadata": {"name": "w"},
        "spec": {"podGroupTemplates": [template]},
    }
    assert registry.create(WORKLOADS, sent)["apiVersion"] == "scheduling.k8s.io/v1beta1"


def test_second_registry_over_the_same_store_finds_everything(registry: Registry) -> None:
    created = registry.create(JOBS, job())
    again = Registry(registry.store, clock=registry.clock)
    assert again.get(JOBS, "a", "default") is created
