"""All of a gang find a node or none, and what one can see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def told(obj: Obj, kind: str) -> tuple[Any, ...]:
    """Status, reason and message of a condition."""
    condition = condition_of(obj, kind)
    assert condition, obj["status"]
    return condition["status"], condition.get("reason", ""), condition.get("message", "")


def group_told(space: Space, name: str) -> tuple[Any, ...] | None:
    """What the PodGroup says of its placing; None in a release without PodGroups."""
    kind = space.release.pod_group_condition
    if kind is None:
        return None
    space.until(lambda: condition_of(space.get("podgroups", name), kind), lambda: f"{kind} of {name}")
    return told(space.get("podgroups", name), kind)


def pods_told(space: Space, job: str) -> set[tuple[Any, ...]]:
    """The different things that the pods of a Job say of their placing, once each says something."""

    def all_told() -> bool:
        return all(condition_of(pod, "PodScheduled") for pod in space.pods(job))

    space.until(all_told, lambda: f"PodScheduled: {space.pods(job)}")
    return {told(pod, "PodScheduled") for pod in space.pods(job)}


def bound(space: Space, job: str) -> int:
    return sum("nodeName" in pod["spec"] for pod in space.pods(job))


def test_gang_that_fits_is_placed(space: Space) -> None:
    gang(space, "g", 3)
    space.wait_bound(3, "g")
    assert pods_told(space, "g") == {("True", "", "")}
    placed = {None: None}.get(space.release.pod_group_condition, ("True", "Scheduled", PLACED))
    assert group_told(space, "g") == placed


PLACED = "All required pods have been successfully scheduled"
REFUSED = {
    "1.35": None,
    "1.36": ("False", "Unschedulable", "pod group is unschedulable"),
    "1.37": ("False", "Unschedulable", "?"),
}


def test_gang_that_cannot_fit_places_nothing(space: Space) -> None:
    gang(space, "g", 6)
    space.wait_pods(6, "g")
    assert group_told(space, "g") == REFUSED[space.target.release]
    assert pods_told(space, "g") == {("x",)}
    assert bound(space, "g") == 0


def test_small_gang_beside_one_that_cannot_fit(space: Space) -> None:
    """In 1.35 the big one's pods wait on places that they hold, and starve it."""
    gang(space, "big", 6)
    space.wait_pods(6, "big")
    pods_told(space, "big") if space.target.release != "1.35" else None
    gang(space, "small", 3)
    if space.target.release != "1.35":
        space.wait_bound(3, "small")
        assert bound(space, "big") == 0
        return
    assert {status for status, _, _ in pods_told(space, "small")} == {"False"}
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
    assert space.list("events", fieldSelector="reason=FailedScheduling") == []
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


def test_pods_beyond_the_least_wait_alone(space: Space) -> None:
    gang(space, "g", 6, least=3)
    space.wait_bound(4, "g")
    waiting = [pod for pod in space.pods("g") if "nodeName" not in pod["spec"]]
    said = {
        told(space.wait_condition("pods", p["metadata"]["name"], "PodScheduled", "False"), "PodScheduled")
        for p in waiting
    }
    assert said == {("y",)}
    assert group_told(space, "g") == ("z",)


def test_gang_is_placed_when_room_appears(space: Space) -> None:
    gang(space, "g", 6)
    space.wait_pods(6, "g")
    pods_told(space, "g") if space.target.release != "1.35" else None
    space.add_nodes(1, cpu=2)
    space.wait_bound(6, "g")
    if space.release.pod_group_condition:
        assert space.wait_condition("podgroups", "g", space.release.pod_group_condition)


def test_suspended_gang_gives_back_and_comes_again(space: Space) -> None:
    gang(space, "g", 4)
    pods = space.wait_bound(4, "g")
    before = group_told(space, "g")
    space.patch("jobs", "g", {"spec": {"suspend": True}})
    space.until(lambda: all("deletionTimestamp" in p["metadata"] for p in space.pods("g")), lambda: "all going")
    space.ends(*pods, exit_code=143)
    space.until(lambda: not space.pods("g"), lambda: "no pods")
    assert group_told(space, "g") == before
    space.patch("jobs", "g", {"spec": {"suspend": False}})
    space.wait_bound(4, "g")


def test_failed_scheduling_is_an_event(space: Space) -> None:
    gang(space, "g", 6)
    event = space.wait_event("FailedScheduling", "Pod")
    assert (event["type"], event["message"]) == ("Warning", "e")


def test_no_node_suits(space: Space) -> None:
    gang(space, "g", 2, pod_spec={"nodeSelector": {"disk": "ssd"}})
    assert pods_told(space, "g") == {("s",)}
    assert group_told(space, "g") == ("s",)


def test_tainted_node_is_named(space: Space) -> None:
    for name in space.nodes:
        taint = {"key": "own", "value": "x", "effect": "NoSchedule"}
        space.api.patch(
            f"/api/v1/nodes/{name}",
            json={"spec": {"taints": [taint]}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
    gang(space, "g", 2)
    assert pods_told(space, "g") == {("t",)}
