"""A gang of higher priority preempts pods of lower priority."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import gang, indexed, link, with_two_nodes
from tests.conformance.namespace import condition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.namespace import Namespace, Obj

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def namespace(namespace: Namespace) -> Namespace:
    """Two nodes of two CPUs that are full of pods without a priority, in a release that has gangs."""
    with_two_nodes(namespace)
    namespace.create("jobs", indexed("low", 4))
    namespace.set_running(*namespace.wait_bound(4, "low"))
    return namespace


@pytest.fixture
def urgent(namespace: Namespace) -> Iterator[str]:
    """The name of a priority class."""
    name = f"urgent-{uuid.uuid4().hex[:6]}"
    namespace.api.post(CLASSES, json={"metadata": {"name": name}, "value": 1000}).raise_for_status()
    yield name
    namespace.api.delete(f"{CLASSES}/{name}").raise_for_status()


def victims(namespace: Namespace) -> list[Obj]:
    return [pod for pod in namespace.pods("low") if condition_of(pod, "DisruptionTarget")]


def test_gang_of_higher_priority_preempts(namespace: Namespace, urgent: str) -> None:
    gang(namespace, "vip", 2, priority=urgent)
    namespace.wait_until(lambda: len(victims(namespace)) == 2, lambda: f"two victims: {victims(namespace)}")
    namespace.wait_until(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in victims(namespace)),
        lambda: "victims being deleted",
    )
    disruption = condition_of(victims(namespace)[0], "DisruptionTarget") or {}
    assert (disruption["status"], disruption["reason"]) == ("True", "PreemptionByScheduler")
    assert disruption["message"] == (
        "default-scheduler: preempting to accommodate a higher priority "
        + ("podgroup" if namespace.target.release == "1.37" else "pod")
    )
    namespace.set_terminated(*victims(namespace), exit_code=143)
    namespace.wait_bound(2, "vip")


def test_group_has_a_condition_while_it_waits_for_preemption(namespace: Namespace, urgent: str) -> None:
    kind = namespace.release.pod_group_condition
    if kind is None:
        pytest.skip("has no PodGroups")
    gang(namespace, "vip", 2, priority=urgent)
    condition = condition_of(namespace.wait_condition("podgroups", "vip", kind, "False"), kind) or {}
    assert (
        condition["message"]
        == {
            "1.36": "pod group is unschedulable, pod group is waiting for preemption to complete",
            "1.37": "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining, "
            "pod group preemption: found a placement for podgroup, preempting 2 victims",
        }[namespace.target.release]
    )


def test_pods_and_group_must_have_the_same_priority(namespace: Namespace, urgent: str) -> None:
    """Since 1.37, a client that creates the group has to set the class on the group too."""
    gang(namespace, "vip", 2, pod_spec={"priorityClassName": urgent})
    if namespace.target.release != "1.37":
        namespace.wait_until(lambda: len(victims(namespace)) == 2, lambda: f"two victims: {victims(namespace)}")
        return
    group = namespace.wait_condition("podgroups", "vip", "PodGroupInitiallyScheduled", "False")
    condition = condition_of(group, "PodGroupInitiallyScheduled") or {}
    assert condition["reason"] == "SchedulerError"
    assert condition["message"] == (
        "all pods in a single pod group should have the same priority as the pod group's priority, got 1000 and 0"
    )
    assert victims(namespace) == []


def test_gang_of_equal_priority_waits(namespace: Namespace) -> None:
    namespace.create("jobs", indexed("single", 1))
    gang(namespace, "g", 2)
    pod = namespace.wait_pods(1, "single")[0]["metadata"]["name"]
    namespace.wait_condition("pods", pod, "PodScheduled", "False")
    assert victims(namespace) == []
    assert link(namespace, "g")
