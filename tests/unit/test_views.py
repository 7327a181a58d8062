"""Views keep only the fields that are read, and store equal values of many pods once."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_provider_gangjobs.cluster.informer.reflector import ViewDecoder
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.kube import well_known
from airflow_provider_gangjobs.kube.views import JobView, PodView, interner_of, make_interner, view
from tests.unit.builders import condition, job, pod

NETWORK = {"cni.projectcalico.org/containerID": "f" * 64, "k8s.v1.cni.cncf.io/network-status": "[{}]" * 100}


InternView = Callable[[PodView, PodView | None], None]


def view_interner() -> InternView:
    intern = interner_of(PodView)
    assert intern is not None
    return intern


def decoded(obj: dict[str, Any], intern: InternView | None = None, *, before: PodView | None = None) -> PodView:
    (event,) = ViewDecoder(PodView).decode_events(json.dumps({"type": "MODIFIED", "object": obj}).encode())
    assert isinstance(event.object, PodView)
    (intern or view_interner())(event.object, before)
    return event.object


def named(name: str) -> dict[str, Any]:
    """Return a running pod of a gang. The pod shares no value that contains this name."""
    built = pod(name).rank(0).on("node-a").running(5).held().obj
    built["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": name, "annotations": NETWORK}
    return built


# -- fields ----------------------------------------------------------------------------------------------------

LABELS = {
    well_known.LABEL_GANG: "gang",
    well_known.LABEL_ATTEMPT: "attempt",
    well_known.LABEL_KUEUE_QUEUE: "kueue_queue",
    well_known.LABEL_TASK: "task",
    well_known.LABEL_DROPPED: "dropped",
    "batch.kubernetes.io/controller-uid": "controller_uid",
}
ANNOTATIONS = {
    well_known.ANNOTATION_RECORD: "record",
    well_known.ANNOTATION_CLAIM: "claim",
    well_known.ANNOTATION_DELIVERED: "delivered",
    well_known.ANNOTATION_STOPPED: "stopped",
    well_known.COMPLETION_INDEX: "completion_index",
    well_known.DEFAULT_CONTAINER: "default_container",
}


@pytest.mark.parametrize(("key", "field"), LABELS.items(), ids=LABELS)
def test_label_is_read(key: str, field: str) -> None:
    read = view(JobView, {"metadata": {"labels": {key: "value", "other": "label"}}}).metadata.labels
    assert msgspec.to_builtins(read) == {key: "value"}
    assert getattr(read, field) == "value"


@pytest.mark.parametrize(("key", "field"), ANNOTATIONS.items(), ids=ANNOTATIONS)
def test_annotation_is_read(key: str, field: str) -> None:
    read = view(JobView, {"metadata": {"annotations": {key: "value", **NETWORK}}}).metadata.annotations
    assert msgspec.to_builtins(read) == {key: "value"}
    assert getattr(read, field) == "value"


CONDITIONS = {
    ("PodScheduled", False): True,
    ("PodScheduled", True): False,
    ("DisruptionTarget", True): True,
    ("DisruptionTarget", False): False,
    ("Ready", True): False,
    ("Ready", False): False,
}


@pytest.mark.parametrize(("given", "kept"), CONDITIONS.items(), ids=str)
def test_pod_condition_is_kept_if_it_is_relevant(given: tuple[str, bool], kept: bool) -> None:
    obj = pod("a").obj
    obj["status"]["conditions"] = [condition(*given, 1), condition("ContainersReady", True, 1)]
    kinds = [item.type for item in view(PodView, obj).status.conditions]
    assert kinds == ([given[0]] if kept else [])


def test_failed_pod_keeps_the_time_at_which_it_became_unready() -> None:
    obj = pod("a").phase("Failed", "Evicted").condition("Ready", False, 50).condition("Initialized", True, 1).obj
    assert [item.type for item in view(PodView, obj).status.conditions] == ["Ready"]


def test_all_conditions_of_a_job_are_kept() -> None:
    assert [item.type for item in job().complete(9).view().status.conditions] == ["SuccessCriteriaMet", "Complete"]


# -- interning -------------------------------------------------------------------------------------------------


def test_equal_values_of_pods_are_stored_once() -> None:
    intern = view_interner()
    one, other = decoded(named("a"), intern), decoded(named("b"), intern)
    assert one.status is other.status
    assert one.spec is other.spec
    assert one.metadata.labels is other.metadata.labels
    assert one.metadata.finalizers is other.metadata.finalizers
    assert (one.metadata.name, other.metadata.name) == ("a", "b")


STAGES = {"running": named("a"), "failed": pod("a").failed(137).obj, "new": pod("a").obj}


@pytest.mark.parametrize("obj", STAGES.values(), ids=STAGES)
def test_interned_view_equals_the_plain_view(obj: dict[str, Any]) -> None:
    intern = view_interner()
    decoded(named("b"), intern)
    assert decoded(obj, intern) == view(PodView, obj)


@pytest.mark.parametrize("later", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("earlier", STAGES.values(), ids=STAGES)
def test_interned_later_view_equals_the_plain_view(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    own = {key: earlier["metadata"].get(key, "") for key in ("name", "namespace", "uid")}
    later = later | {"metadata": later["metadata"] | own}
    intern = view_interner()
    assert decoded(later, intern, before=decoded(earlier, intern)) == view(PodView, later)


PARTS = ("labels", "annotations", "finalizers", "owner_references", "namespace", "creation_timestamp", "uid", "name")


def test_later_view_keeps_unchanged_values() -> None:
    intern = view_interner()
    was = decoded(named("a"), intern)
    ended = named("a") | {"status": pod("a").failed(137).obj["status"]}
    now = decoded(ended, intern, before=was)
    assert all(getattr(now.metadata, part) is getattr(was.metadata, part) for part in PARTS)
    assert now.spec is was.spec
    freed = ended | {"metadata": ended["metadata"] | {"finalizers": []}}
    assert decoded(freed, intern, before=now).status is now.status


@pytest.mark.parametrize("part", ["labels", "annotations", "finalizers", "ownerReferences"])
def test_removed_value_is_missing_in_the_later_view(part: str) -> None:
    intern = view_interner()
    obj = named("a") | {"metadata": named("a")["metadata"] | {"annotations": {well_known.DEFAULT_CONTAINER: "a"}}}
    obj["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": "u", "controller": True}]
    without = obj | {"metadata": {key: value for key, value in obj["metadata"].items() if key != part}}
    was = decoded(obj, intern)
    assert decoded(without, intern, before=was) == view(PodView, without) != was


def test_garbage_collector_does_not_track_the_view_of_a_pod() -> None:
    """A hundred thousand tracked objects would make each full collection a tenth of a second longer."""
    read = decoded(named("a"))
    parts = [read, read.metadata, read.metadata.labels, read.metadata.annotations, read.spec, read.status]
    assert not any(map(gc.is_tracked, parts))


def test_table_is_bounded() -> None:
    intern_value = make_interner(values_max=10)
    for number in range(1000):
        intern_value(f"node-{number}")
    assert intern_value.cache_info().currsize == 10  # type: ignore[attr-defined]


def test_later_view_of_a_pod_has_the_uid_and_name_of_the_first() -> None:
    """A dictionary keeps its first key, so a second string of each uid would only use memory."""
    store: Store[PodView] = Store(lambda _: "k", intern=interner_of(PodView))
    first, later = decoded(named("a")), decoded(named("a") | {"status": {"phase": "Failed"}})
    later = msgspec.structs.replace(later, metadata=msgspec.structs.replace(later.metadata, resource_version="2"))
    store.put(first)
    store.put(later)
    (kept,) = store.objects("k").values()
    assert kept.status.phase == "Failed"
    assert (kept.metadata.uid, kept.metadata.name) == ("uid-of-a", "a")
    assert kept.metadata.uid is first.metadata.uid
    assert kept.metadata.name is first.metadata.name
