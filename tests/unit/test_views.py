"""Views keep what is read of an object and nothing more, and what many pods have in common once."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_provider_gangjobs.cluster.informer.decoding import ViewDecoder
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.gang import labels
from airflow_provider_gangjobs.kube.interning import interner_of, make_interner
from airflow_provider_gangjobs.kube.views import JobView, PodView, view
from tests.unit.builders import condition, job, pod

NETWORK = {"cni.projectcalico.org/containerID": "f" * 64, "k8s.v1.cni.cncf.io/network-status": "[{}]" * 100}


Share = Callable[[PodView, PodView | None], None]


def sharer() -> Share:
    share = interner_of(PodView)
    assert share is not None
    return share


def decoded(obj: dict[str, Any], share: Share | None = None, *, before: PodView | None = None) -> PodView:
    (event,) = ViewDecoder(PodView).decode_events(json.dumps({"type": "MODIFIED", "object": obj}).encode())
    assert isinstance(event.object, PodView)
    (share or sharer())(event.object, before)
    return event.object


def named(name: str) -> dict[str, Any]:
    """A running pod of a gang; all that has this name in it is its own."""
    built = pod(name).rank(0).on("node-a").running(5).held().obj
    built["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": name, "annotations": NETWORK}
    return built


# -- what is read ----------------------------------------------------------------------------------------------

LABELS = {
    labels.LABEL_GANG: "gang",
    labels.LABEL_ATTEMPT: "attempt",
    labels.LABEL_KUEUE_QUEUE: "kueue_queue",
    labels.LABEL_TASK: "task",
    labels.LABEL_DROPPED: "dropped",
    "batch.kubernetes.io/controller-uid": "controller_uid",
    "controller-uid": "controller_uid_before_1_27",
}
ANNOTATIONS = {
    labels.ANNOTATION_TRIGGER_ID: "trigger_id",
    labels.ANNOTATION_SPEC_HASH: "spec_hash",
    labels.ANNOTATION_SPEC_FIELDS: "spec_fields",
    labels.ANNOTATION_CLAIM: "claim",
    labels.ANNOTATION_DELIVERED: "delivered",
    labels.ANNOTATION_DISRUPTIONS: "disruptions",
    labels.ANNOTATION_HALTED: "halted",
    labels.ANNOTATION_TASK: "task",
    labels.ANNOTATION_GANG: "gang",
    labels.ANNOTATION_COMPLETION_INDEX: "completion_index",
    labels.ANNOTATION_DEFAULT_CONTAINER: "default_container",
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


@pytest.mark.parametrize(("said", "kept"), CONDITIONS.items(), ids=str)
def test_condition_of_a_pod_is_kept_if_it_tells_something(said: tuple[str, bool], kept: bool) -> None:
    obj = pod("a").obj
    obj["status"]["conditions"] = [condition(*said, 1), condition("ContainersReady", True, 1)]
    kinds = [item.type for item in view(PodView, obj).status.conditions]
    assert kinds == ([said[0]] if kept else [])


def test_all_conditions_of_a_job_are_kept() -> None:
    assert [item.type for item in job().complete(9).view().status.conditions] == ["SuccessCriteriaMet", "Complete"]


# -- what is shared --------------------------------------------------------------------------------------------


def test_pods_of_a_gang_share_what_is_equal() -> None:
    share = sharer()
    one, other = decoded(named("a"), share), decoded(named("b"), share)
    assert one.status is other.status
    assert one.spec is other.spec
    assert one.metadata.labels is other.metadata.labels
    assert one.metadata.finalizers is other.metadata.finalizers
    assert (one.metadata.name, other.metadata.name) == ("a", "b")


def test_pods_of_gangs_that_come_by_turns_share_with_their_like() -> None:
    share = sharer()
    ours, theirs = named("a"), named("b")
    theirs["metadata"]["labels"] = {labels.LABEL_GANG: "theirs"}
    theirs["spec"] = {"nodeName": "node-b"}
    turns = [decoded(obj, share) for obj in (ours, theirs, ours, theirs)]
    for one, again in zip(turns[:2], turns[2:], strict=True):
        assert one.metadata.labels is again.metadata.labels
        assert one.spec is again.spec
        assert one.status is again.status


@pytest.mark.parametrize("exit_code", [0, 137])
def test_ends_of_pods_have_their_parts_in_common(exit_code: int) -> None:
    share = sharer()
    one, other = (
        decoded(obj | {"metadata": named(name)["metadata"]}, share).status
        for name, obj in (("a", pod("a").failed(exit_code).obj), ("b", pod("b").failed(1).obj))
    )
    (here,), (there,) = one.container_statuses, other.container_statuses
    assert (one.phase, one.start_time) == (other.phase, other.start_time)
    assert one.phase is other.phase
    assert here.name is there.name
    assert here.last_state is there.last_state
    assert here.state.terminated is not None
    assert there.state.terminated is not None
    assert here.state.terminated.reason is there.state.terminated.reason


STAGES = {"running": named("a"), "failed": pod("a").failed(137).obj, "new": pod("a").obj}


@pytest.mark.parametrize("obj", STAGES.values(), ids=STAGES)
def test_shared_view_says_what_an_unshared_one_says(obj: dict[str, Any]) -> None:
    share = sharer()
    decoded(named("b"), share)
    assert decoded(obj, share) == view(PodView, obj)


@pytest.mark.parametrize("later", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("earlier", STAGES.values(), ids=STAGES)
def test_later_view_says_what_an_unshared_one_says(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    own = {key: earlier["metadata"].get(key, "") for key in ("name", "namespace", "uid")}
    later = later | {"metadata": later["metadata"] | own}
    share = sharer()
    assert decoded(later, share, before=decoded(earlier, share)) == view(PodView, later)


PARTS = ("labels", "annotations", "finalizers", "owner_references", "namespace", "creation_timestamp", "uid", "name")


def test_later_view_of_a_pod_has_what_did_not_change() -> None:
    share = sharer()
    was = decoded(named("a"), share)
    ended = named("a") | {"status": pod("a").failed(137).obj["status"]}
    now = decoded(ended, share, before=was)
    assert all(getattr(now.metadata, part) is getattr(was.metadata, part) for part in PARTS)
    assert now.spec is was.spec
    freed = ended | {"metadata": ended["metadata"] | {"finalizers": []}}
    assert decoded(freed, share, before=now).status is now.status


@pytest.mark.parametrize("part", ["labels", "annotations", "finalizers", "ownerReferences"])
def test_what_was_taken_from_a_pod_is_gone_in_its_later_view(part: str) -> None:
    share = sharer()
    obj = named("a") | {
        "metadata": named("a")["metadata"] | {"annotations": {labels.ANNOTATION_DEFAULT_CONTAINER: "a"}}
    }
    obj["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": "u", "controller": True}]
    without = obj | {"metadata": {key: value for key, value in obj["metadata"].items() if key != part}}
    was = decoded(obj, share)
    assert decoded(without, share, before=was) == view(PodView, without) != was


def test_pod_is_no_concern_of_the_garbage_collector() -> None:
    """A hundred thousand of them would make each full collection a tenth of a second longer."""
    read = decoded(named("a"))
    parts = [read, read.metadata, read.metadata.labels, read.metadata.annotations, read.spec, read.status]
    assert not any(map(gc.is_tracked, parts))


def test_equal_values_become_the_first_of_them() -> None:
    one = make_interner()
    first, second = "".join(["no", "de"]), "".join(["no", "de"])
    assert first is not second
    assert one(first) is one(second) is first


def test_values_that_are_in_use_are_not_forgotten() -> None:
    one = make_interner(values_max=3)
    used = one("".join(["no", "de"]))
    for number in range(100):
        one(f"passing-{number}")
        assert one("".join(["no", "de"])) is used


def test_table_is_bounded() -> None:
    one = make_interner(values_max=10)
    for number in range(1000):
        one(f"node-{number}")
    assert one.cache_info().currsize == 10  # type: ignore[attr-defined]


def test_later_view_of_a_pod_has_the_uid_and_name_of_the_first() -> None:
    """Dictionaries keep the first key that they got: a second string of each uid would be memory for nothing."""
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
