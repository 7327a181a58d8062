"""All of a gang find a node or none, and what one can see of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import gang, group, indexed, link
from tests.conformance.space import condition_of

if TYPE_CHECKING:
    from tests.conformance.space import Obj, Space


@pytest.fixture
def space(space: Space) -> Space:
    """Two nodes of two CPUs, in a release that has gangs."""
    if space.release.scheduling_version is None:
        pytest.skip("serves no Workloads")
    space.add_nodes(2, cpu=2)
    return space


def told(obj: Obj, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    condition = condition_of(obj, kind)
    assert condition, obj["status"]
    return condition["status"], condition.get("reason", ""), condition.get("message", "")


def group_told(space: Space, name: str) -> tuple[str, str, str] | None:
    """What the PodGroup says of its placing; None in a release without PodGroups."""
    kind = space.release.pod_group_condition
    if kind is None:
        return None
    space.until(lambda: condition_of(space.get("podgroups", name), kind), lambda: f"{kind} of {name}")
    return told(space.get("podgroups", name), kind)


def pods_told(space: Space, job: str, count: int) -> Counter[str]:
    """How many pods say what about having no node, once `count` of the Job's pods say something."""

    def all_told() -> list[Obj] | None:
        pods = [pod for pod in space.pods(job) if (condition_of(pod, "PodScheduled") or {}).get("status") == "False"]
        return pods if len(pods) == count else None

    pods = space.until(all_told, lambda: f"{count} refused pods: {space.pods(job)}")
    assert {told(pod, "PodScheduled")[:2] for pod in pods} == {("False", "Unschedulable")}
    return Counter(told(pod, "PodScheduled")[2] for pod in pods)


def bound(space: Space, job: str) -> int:
    return sum("nodeName" in pod["spec"] for pod in space.pods(job))


def refused(cause: str, preemption: str) -> dict[str, str]:
    """What a pod that no node takes says, by release."""
    text = f"0/2 nodes are available: {cause}."
    before_1_37 = f"{text} no new claims to deallocate, preemption: 0/2 nodes are available: {preemption}."
    return {"1.35": before_1_37, "1.36": before_1_37, "1.37": text}


NO_ROOM = refused("2 Insufficient cpu", "2 No preemption victims found for incoming pod")
UNSUITABLE = "2 Preemption is not helpful for scheduling"
LACKING = "minCount ({least}) cannot be satisfied: {placed} scheduled, 1 remaining"
NO_VICTIMS = ", pod group preemption: No preemption victims found for incoming preemptor"
GROUP = "pod group is unschedulable"
WAITING = (
    f"{GROUP}, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)


def group_refused(least: int, placed: int) -> dict[str, tuple[str, str, str] | None]:
    lacking = LACKING.format(least=least, placed=placed) + NO_VICTIMS
    return {"1.35": None, "1.36": ("False", "Unschedulable", GROUP), "1.37": ("False", "Unschedulable", lacking)}


def test_gang_that_fits_is_placed(space: Space) -> None:
    gang(space, "g", 3)
    pods = space.wait_bound(3, "g")
    for pod in pods:
        scheduled = space.wait_condition("pods", pod["metadata"]["name"], "PodScheduled")
        assert told(scheduled, "PodScheduled") == ("True", "", "")
    assert group_told(space, "g") == (("True", "Scheduled", "") if space.release.has_pod_groups else None)


def test_gang_that_cannot_fit_places_nothing(space: Space) -> None:
    """Four have a place and wait for the others; in 1.35 they say nothing."""
    release = space.target.release
    gang(space, "g", 6)
    lacking = LACKING.format(least=6, placed=4)
    assert (
        pods_told(space, "g", 2 if release == "1.35" else 6)
        == {
            "1.35": Counter({NO_ROOM["1.35"]: 2}),
            "1.36": Counter({NO_ROOM["1.36"]: 2, WAITING: 4}),
            "1.37": Counter({NO_ROOM["1.37"]: 1, f"{GROUP}, {lacking}{NO_VICTIMS}": 4, lacking: 1}),
        }[release]
    )
    assert group_told(space, "g") == group_refused(6, 4)[release]
    assert bound(space, "g") == 0


def test_refused_gang_is_told_by_events(space: Space) -> None:
    gang(space, "g", 6)
    refusals = pods_told(space, "g", 2 if space.target.release == "1.35" else 6)
    assert space.wait_event("FailedScheduling", "Pod")["type"] == "Warning"
    space.until(
        lambda: (
            {event["message"] for event in space.listed("events", fieldSelector="reason=FailedScheduling")}
            == set(refusals)
        ),
        lambda: f"events {set(refusals)}",
    )


def test_small_gang_beside_one_that_cannot_fit(space: Space) -> None:
    """In 1.35 the big one's pods wait on places that they hold, and starve it."""
    starves = space.target.release == "1.35"
    gang(space, "big", 6)
    pods_told(space, "big", 2 if starves else 6)
    gang(space, "small", 3)
    if not starves:
        space.wait_bound(3, "small")
        assert bound(space, "big") == 0
        return
    assert pods_told(space, "small", 3) == Counter({NO_ROOM["1.35"]: 3})
    assert bound(space, "small") + bound(space, "big") == 0
    space.patch("jobs", "big", {"spec": {"suspend": True}})
    space.wait_bound(3, "small")


def test_nothing_is_said_as_long_as_the_group_is_missing(space: Space) -> None:
    """No condition, no event: the scheduler holds the pods before its queue."""
    space.create("jobs", indexed("g", 2, pod_spec=link(space, "g")))
    space.create("jobs", indexed("witness", 1))
    space.wait_pods(2, "g")
    space.wait_bound(1, "witness")
    assert [pod["status"].get("conditions") for pod in space.pods("g")] == [None, None]
    assert space.listed("events", fieldSelector="reason=FailedScheduling") == []
    group(space, "g", 2)
    space.wait_bound(2, "g")


def test_nothing_is_said_as_long_as_pods_are_missing(space: Space) -> None:
    group(space, "g", 3)
    space.create("jobs", indexed("g", 2, pod_spec=link(space, "g")))
    space.create("jobs", indexed("witness", 1))
    space.wait_pods(2, "g")
    space.wait_bound(1, "witness")
    assert [pod["status"].get("conditions") for pod in space.pods("g")] == [None, None]
    if space.release.pod_group_condition:
        assert not space.get("podgroups", "g").get("status", {}).get("conditions")
    space.create("jobs", indexed("h", 1, pod_spec=link(space, "g")))
    space.wait_bound(2, "g")


def test_pods_beyond_the_least_may_wait(space: Space) -> None:
    gang(space, "g", 6, least=3)
    space.wait_bound(4, "g")
    assert pods_told(space, "g", 2) == Counter({NO_ROOM[space.target.release]: 2})
    assert group_told(space, "g") == (("True", "Scheduled", "") if space.release.has_pod_groups else None)


def test_gang_is_placed_when_room_appears(space: Space) -> None:
    gang(space, "g", 6)
    pods_told(space, "g", 2 if space.target.release == "1.35" else 6)
    space.add_nodes(1, cpu=2)
    space.wait_bound(6, "g")
    if space.release.pod_group_condition:
        assert space.wait_condition("podgroups", "g", space.release.pod_group_condition)


def test_placed_once_is_placed_for_the_group(space: Space) -> None:
    """Its condition says what happened, not what is: the gang is suspended, comes again, and finds no room."""
    gang(space, "g", 4)
    pods = space.wait_bound(4, "g")
    placed = group_told(space, "g")
    space.patch("jobs", "g", {"spec": {"suspend": True}})
    space.until(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in space.pods("g")), lambda: "pods being deleted"
    )
    space.ends(*pods, exit_code=143)
    space.until(lambda: not space.pods("g"), lambda: "no pods")
    space.create("jobs", indexed("other", 1))
    space.wait_bound(1, "other")
    space.patch("jobs", "g", {"spec": {"suspend": False}})
    pods_told(space, "g", 1 if space.target.release == "1.35" else 4)
    assert group_told(space, "g") == placed
    assert bound(space, "g") == 0


UNSUITABLE_NODES = {
    "no node has the label": (
        {"nodeSelector": {"disk": "ssd"}},
        "1",
        "2 node(s) didn't match Pod's node affinity/selector",
    ),
    "every node is tainted": ({}, "1", "2 node(s) had untolerated taint(s)"),
    "no node is large enough": ({}, "3", "2 Insufficient cpu"),
}


@pytest.mark.parametrize(("pod_spec", "cpu", "cause"), UNSUITABLE_NODES.values(), ids=UNSUITABLE_NODES)
def test_nodes_that_never_suit_are_told_apart(space: Space, pod_spec: Obj, cpu: str, cause: str) -> None:
    if "taint" in cause:
        space.taint({"key": "own", "value": "x", "effect": "NoSchedule"})
    release = space.target.release
    gang(space, "g", 2, cpu=cpu, pod_spec=pod_spec)
    text = refused(cause, UNSUITABLE)[release]
    only_one_tried = Counter({text: 1, LACKING.format(least=2, placed=0): 1})
    assert pods_told(space, "g", 2) == (only_one_tried if release == "1.37" else Counter({text: 2}))
    assert group_told(space, "g") == group_refused(2, 0)[release]


def test_pod_without_a_group_tells_why_preemption_does_not_help(space: Space) -> None:
    space.taint({"key": "own", "effect": "NoSchedule"}, only=space.nodes[0])
    space.create("jobs", indexed("single", 3))
    both = "1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling"
    text = refused("1 Insufficient cpu, 1 node(s) had untolerated taint(s)", both)[space.target.release]
    if space.target.release == "1.37":
        text += f" preemption: 0/2 nodes are available: {both}."
    assert pods_told(space, "single", 1) == Counter({text: 1})
