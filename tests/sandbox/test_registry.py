"""The registry as controllers use it: in process, without HTTP. The conformance tests check what clients see."""

from __future__ import annotations

import copy
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import Event, PatchKind, Registry
from gangjobs_sandbox.resources import CONFIGMAPS, EVENTS, JOBS, NAMESPACES, PODGROUPS, PODS, WORKLOADS

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


def test_every_cluster_starts_with_namespaces(registry: Registry) -> None:
    names = [namespace["metadata"]["name"] for namespace in registry.list(NAMESPACES)]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]


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


def test_creation_time_is_from_the_clock(registry: Registry, clock: VirtualClock) -> None:
    clock.advance(90)
    assert registry.create(PODS, pod())["metadata"]["creationTimestamp"] == "2026-01-01T00:01:30Z"


def test_arguments_are_not_changed(registry: Registry) -> None:
    sent = job()
    before = copy.deepcopy(sent)
    registry.create(JOBS, sent)
    assert sent == before


def test_returned_objects_are_not_changed(registry: Registry) -> None:
    created = registry.create(PODS, pod())
    before = copy.deepcopy(created)
    registry.patch(PODS, "a", "default", {"metadata": {"labels": {"x": "y"}}})
    registry.bind("a", "default", "n1")
    registry.delete(PODS, "a", "default", grace_period_s=0)
    assert created == before


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


def test_update_with_an_old_version_conflicts(registry: Registry) -> None:
    old = registry.create(CONFIGMAPS, {"metadata": {"name": "a"}})
    registry.update(CONFIGMAPS, {**old, "data": {"k": "1"}})
    with refusal(409):
        registry.update(CONFIGMAPS, {**old, "data": {"k": "2"}})


def test_status_update_keeps_the_spec(registry: Registry) -> None:
    created = registry.create(JOBS, job())
    updated = registry.update(JOBS, {**created, "spec": {}, "status": {"active": 1}}, subresource="status")
    assert (updated["spec"], updated["status"]) == (created["spec"], {"active": 1})


def test_list_takes_selectors_as_text(registry: Registry) -> None:
    registry.create(PODS, pod("a"))
    registry.create(PODS, {**pod("b"), "metadata": {"name": "b", "labels": {"x": "y"}}})
    registry.bind("b", "default", "n1")
    assert [p["metadata"]["name"] for p in registry.list(PODS, "default", "x=y")] == ["b"]
    assert [p["metadata"]["name"] for p in registry.list(PODS, None, None, "spec.nodeName=")] == ["a"]


def test_bound_pod_cannot_be_rebound(registry: Registry) -> None:
    registry.create(PODS, pod())
    bound = registry.bind("a", "default", "n1")
    assert (bound["spec"]["nodeName"], bound["status"]["conditions"][0]["type"]) == ("n1", "PodScheduled")
    with refusal(409):
        registry.bind("a", "default", "n2")


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


def test_namespace_is_removed_with_its_last_finalizer(registry: Registry) -> None:
    registry.create(NAMESPACES, {"metadata": {"name": "n"}})
    going = registry.delete(NAMESPACES, "n")
    assert (going["status"]["phase"], "deletionTimestamp" in going["metadata"]) == ("Terminating", True)
    assert registry.delete(NAMESPACES, "n") == going
    registry.update(NAMESPACES, {**going, "spec": {"finalizers": []}}, subresource="finalize")
    assert registry.find(NAMESPACES, None, "n") is None


def test_namespace_with_a_foreign_finalizer_is_terminating(registry: Registry) -> None:
    registry.create(NAMESPACES, {"metadata": {"name": "n", "finalizers": ["example.org/hold"]}})
    assert registry.delete(NAMESPACES, "n")["status"]["phase"] == "Terminating"


def test_nothing_is_created_in_a_terminating_namespace(registry: Registry) -> None:
    registry.create(NAMESPACES, {"metadata": {"name": "n"}})
    registry.delete(NAMESPACES, "n")
    with refusal(403):
        registry.create(PODS, pod(), "n")


@pytest.mark.parametrize(("release", "is_kept"), [("1.36", True), ("none", False)])
def test_link_to_a_group_is_dropped_where_there_are_no_groups(release: str, is_kept: bool) -> None:
    spec = Registry(release=release).create(PODS, pod(schedulingGroup={"podGroupName": "g"}))["spec"]
    assert ("schedulingGroup" in spec) is is_kept


def test_objects_are_stored_under_the_preferred_version() -> None:
    registry = Registry(release="1.37")
    template = {"name": "t", "schedulingPolicy": {"basic": {}}}
    sent = {
        "apiVersion": "scheduling.k8s.io/v1alpha3",
        "metadata": {"name": "w"},
        "spec": {"podGroupTemplates": [template]},
    }
    assert registry.create(WORKLOADS, sent)["apiVersion"] == "scheduling.k8s.io/v1beta1"


def test_parallelism_of_a_gang_is_immutable_in_1_36() -> None:
    registry = Registry(release="1.36")
    created = registry.create(JOBS, job(parallelism=2, completions=2, suspend=True))
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "a",
        "uid": created["metadata"]["uid"],
        "controller": True,
    }
    group = {
        "metadata": {"name": "g", "ownerReferences": [owner]},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    registry.create(PODGROUPS, group)
    with refusal(403):
        registry.patch(JOBS, "a", "default", {"spec": {"parallelism": 1}})


def test_json_patch_is_a_list_of_operations(registry: Registry) -> None:
    registry.create(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"k": "1"}})
    operations = [{"op": "replace", "path": "/data/k", "value": "2"}]
    patched = registry.patch(CONFIGMAPS, "a", "default", operations, PatchKind.JSON)
    assert patched["data"] == {"k": "2"}


def test_second_registry_over_the_same_store_finds_everything(registry: Registry) -> None:
    created = registry.create(JOBS, job())
    again = Registry(registry.store, clock=registry.clock)
    assert again.get(JOBS, "a", "default") is created
