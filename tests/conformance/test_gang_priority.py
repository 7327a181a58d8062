"""A gang that is more important takes the place of what is less."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import gang, indexed, link
from tests.conformance.space import condition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.space import Obj, Space

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def space(space: Space) -> Space:
    """Two nodes of two CPUs, all taken by pods of no priority, in a release that has gangs."""
    if space.release.scheduling_version is None:
        pytest.skip("serves no Workloads")
    space.add_nodes(2, cpu=2)
    space.create("jobs", indexed("low", 4))
    space.runs(*space.wait_bound(4, "low"))
    return space


@pytest.fixture
def urgent(space: Space) -> Iterator[str]:
    """The name of a priority class."""
    name = f"urgent-{uuid.uuid4().hex[:6]}"
    space.api.post(CLASSES, json={"metadata": {"name": name}, "value": 1000}).raise_for_status()
    yield name
    space.api.delete(f"{CLASSES}/{name}").raise_for_status()


def victims(space: Space) -> list[Obj]:
    return [pod for pod in space.pods("low") if condition_of(pod, "DisruptionTarget")]


def test_more_important_gang_takes_the_place(space: Space, urgent: str) -> None:
    gang(space, "vip", 2, priority=urgent)
    space.until(lambda: len(victims(space)) == 2, lambda: f"two victims: {victims(space)}")
    space.until(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in victims(space)), lambda: "victims being deleted"
    )
    disruption = condition_of(victims(space)[0], "DisruptionTarget") or {}
    assert (disruption["status"], disruption["reason"]) == ("True", "PreemptionByScheduler")
    assert disruption["message"] == (
        "default-scheduler: preempting to accommodate a higher priority "
        + ("podgroup" if space.target.release == "1.37" else "pod")
    )
    space.ends(*victims(space), exit_code=143)
    space.wait_bound(2, "vip")


def test_group_says_that_it_waits_for_its_place(space: Space, urgent: str) -> None:
    kind = space.release.pod_group_condition
    if kind is None:
        pytest.skip("has no PodGroups")
    gang(space, "vip", 2, priority=urgent)
    condition = condition_of(space.wait_condition("podgroups", "vip", kind, "False"), kind) or {}
    assert (
        condition["message"]
        == {
            "1.36": "pod group is unschedulable, pod group is waiting for preemption to complete",
            "1.37": "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining, "
            "pod group preemption: found a placement for podgroup, preempting 2 victims",
        }[space.target.release]
    )


def test_priority_of_pods_and_group_must_be_one(space: Space, urgent: str) -> None:
    """Since 1.37; so whoever makes the group has to name the class there too."""
    gang(space, "vip", 2, pod_spec={"priorityClassName": urgent})
    if space.target.release != "1.37":
        space.until(lambda: len(victims(space)) == 2, lambda: f"two victims: {victims(space)}")
        return
    group = space.wait_condition("podgroups", "vip", "PodGroupInitiallyScheduled", "False")
    condition = condition_of(group, "PodGroupInitiallyScheduled") or {}
    assert condition["reason"] == "SchedulerError"
    assert condition["message"] == (
        "all pods in a single pod group should have the same priority as the pod group's priority, got 1000 and 0"
    )
    assert victims(space) == []


def test_equally_important_gang_waits(space: Space) -> None:
    space.create("jobs", indexed("single", 1))
    gang(space, "g", 2)
    pod = space.wait_pods(1, "single")[0]["metadata"]["name"]
    space.wait_condition("pods", pod, "PodScheduled", "False")
    assert victims(space) == []
    assert link(space, "g")
