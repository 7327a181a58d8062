"""The registry as controllers use it: in process, without HTTP. The conformance tests check what clients see."""

from __future__ import annotations

import copy
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.apimachinery.quantity import canonical
from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import Event, PatchKind, Propagation, Registry
from gangjobs_sandbox.registry.schema import DecodingError, schema_of
from gangjobs_sandbox.resources import CONFIGMAPS, EVENTS, JOBS, NAMESPACES, PODS, WORKLOADS
from tests.examples import examples

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


# -- Field tables: decoding, and what the releases have --------------------------------------------------------------

POD = "core.v1.Pod"


def decoded(obj: dict[str, Any], release: str = "1.37") -> tuple[dict[str, Any], list[str]]:
    unknown: list[str] = []
    return schema_of(release).decode(POD, obj, unknown), unknown


@pytest.mark.parametrize(
    ("spec", "given", "type_"),
    [
        ({"containers": {}}, "object", "[]v1.Container"),
        ({"containers": ["x"]}, "string", "v1.Container"),
        ({"hostNetwork": 1}, "number", "bool"),
        ({"priority": 1.5}, "number 1.5", "int32"),
        ({"priority": True}, "bool", "int32"),
        ({"nodeSelector": []}, "array", "map[string]string"),
        ({"nodeName": {}}, "object", "string"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_type_has_the_message_of_go(spec: dict[str, Any], given: str, type_: str) -> None:
    (field,) = spec
    with pytest.raises(DecodingError) as caught:
        decoded({"spec": spec})
    message = f"json: cannot unmarshal {given} into Go struct field PodSpec.spec.{field} of type {type_}"
    assert str(caught.value) == message


def test_time_must_be_a_timestamp() -> None:
    with pytest.raises(DecodingError, match='parsing time "yesterday"'):
        decoded({"metadata": {"creationTimestamp": "yesterday"}})


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("1024", "1024"),
        ("1500", "1500"),
        ("0.5", "500m"),
        ("1000m", "1"),
        ("0", "0"),
        ("0Mi", "0"),
        ("1536Mi", "1536Mi"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("12E2", "1200"),
        ("5e-1", "500e-3"),
        ("-1.5", "-1500m"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        (0.25, "250m"),
    ],
)
def test_canonical_quantity(sent: Any, kept: str) -> None:
    assert canonical(sent) == kept


SUFFIXES = st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3"])


@given(st.integers(-9999, 9999), SUFFIXES)
def test_canonical_form_keeps_the_value_and_itself(number: int, suffix: str) -> None:
    once = canonical(f"{number}{suffix}")
    assert quantity.parse(once) == quantity.parse(f"{number}{suffix}")
    assert canonical(once) == once


# -- Random deletions: objects with finalizers stay, and released objects are removed --------------------------------

FINALIZERS = ("example.org/a", "example.org/b")
ORDERS = {"orphan", "foregroundDeletion"}


class OnePod(RuleBasedStateMachine):
    """One pod, and all writers that may affect its end."""

    @initialize(finalizers=st.lists(st.sampled_from(FINALIZERS), unique=True), on_node=st.booleans())
    def create(self, finalizers: list[str], on_node: bool) -> None:
        self.clock = VirtualClock()
        self.registry = Registry(clock=self.clock)
        spec: dict[str, Any] = {"containers": [{"name": "main", "image": "x:1"}]}
        if on_node:
            spec["nodeName"] = "n1"
        self.before = self.registry.create(PODS, {"metadata": {"name": "a", "finalizers": finalizers}, "spec": spec})

    @property
    def pod(self) -> dict[str, Any] | None:
        return self.registry.find(PODS, "default", "a")

    def exists(self) -> bool:
        return self.pod is not None

    @precondition(exists)
    @rule(grace=st.none() | st.integers(0, 60), propagation=st.none() | st.sampled_from(list(Propagation)))
    def delete(self, grace: int | None, propagation: Propagation | None) -> None:
        self.registry.delete(PODS, "a", "default", grace_period_s=grace, propagation=propagation)

    @precondition(exists)
    @rule(name=st.sampled_from([*FINALIZERS, *sorted(ORDERS)]))
    def release(self, name: str) -> None:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [name]}}
        self.registry.patch(PODS, "a", "default", patch, PatchKind.STRATEGIC)

    @precondition(exists)
    @rule(name=st.sampled_from(FINALIZERS))
    def hold(self, name: str) -> None:
        metadata = (self.pod or {})["metadata"]
        finalizers_before = metadata.get("finalizers") or []
        patch = {"metadata": {"finalizers": [*finalizers_before, name]}}
        if "deletionTimestamp" in metadata and name not in finalizers_before:
            with pytest.raises(StatusError, match="no new finalizers can be added"):
                self.registry.patch(PODS, "a", "default", patch)
        else:
            self.registry.patch(PODS, "a", "default", patch)

    @precondition(exists)
    @rule(phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def progress(self, phase: str) -> None:
        self.registry.patch(PODS, "a", "default", {"status": {"phase": phase}}, subresource="status")

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def end_is_never_taken_back(self) -> None:
        pod = self.pod
        if pod is None:
            return
        earlier, now = self.before["metadata"], pod["metadata"]
        assert int(now["resourceVersion"]) >= int(earlier["resourceVersion"])
        assert now["generation"] >= earlier["generation"]
        if "deletionTimestamp" in earlier:
            assert now["deletionTimestamp"] <= earlier["deletionTimestamp"]
            assert now["deletionGracePeriodSeconds"] <= earlier["deletionGracePeriodSeconds"]
        self.before = pod

    @invariant()
    def nothing_that_is_released_stays(self) -> None:
        """A pod that was deleted without a grace period exists only while it has a finalizer."""
        pod = self.pod
        if pod is not None and pod["metadata"].get("deletionGracePeriodSeconds") == 0:
            assert pod["metadata"].get("finalizers")

    @invariant()
    def nothing_that_is_held_goes(self) -> None:
        """A removed pod was deleted, and its last version had at most one finalizer: the one that was released."""
        if self.pod is None:
            assert len(set(self.before["metadata"].get("finalizers") or [])) <= 1


OnePod.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=20, deadline=None)
TestOnePod = OnePod.TestCase
