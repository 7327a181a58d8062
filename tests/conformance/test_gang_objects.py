"""Workload and PodGroup beside the pods that use them: protection, collection, and a group that goes away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import gang, group, indexed, link
from tests.conformance.space import FOREIGN

if TYPE_CHECKING:
    from tests.conformance.space import Space

PROTECTION = "scheduling.k8s.io/podgroup-protection"


@pytest.fixture
def space(space: Space) -> Space:
    """Two nodes of two CPUs, in a release that has gangs."""
    if space.release.scheduling_version is None:
        pytest.skip("serves no Workloads")
    space.add_nodes(2, cpu=2)
    return space


@pytest.fixture
def grouped(space: Space) -> Space:
    if not space.release.has_pod_groups:
        pytest.skip("has no PodGroups")
    return space


def test_group_is_protected_while_its_pods_may_run(grouped: Space) -> None:
    gang(grouped, "g", 2)
    pods = grouped.wait_bound(2, "g")
    assert grouped.get("podgroups", "g")["metadata"]["finalizers"] == [PROTECTION]
    grouped.delete("podgroups", "g")
    assert "deletionTimestamp" in grouped.get("podgroups", "g")["metadata"]
    grouped.ends(*pods)
    grouped.wait_gone("podgroups", "g")


def test_held_pods_that_have_ended_do_not_keep_the_group(grouped: Space) -> None:
    gang(grouped, "g", 2, finalizers=(FOREIGN,))
    grouped.ends(*grouped.wait_bound(2, "g"))
    grouped.wait_job("Complete", job="g")
    grouped.delete("podgroups", "g")
    grouped.wait_gone("podgroups", "g")
    assert len(grouped.pods("g")) == 2


def test_group_that_nobody_uses_goes_at_once(grouped: Space) -> None:
    group(grouped, "g", 2)
    grouped.delete("podgroups", "g")
    grouped.wait_gone("podgroups", "g")


def test_group_goes_with_its_job(space: Space) -> None:
    gang(space, "g", 2)
    pods = space.wait_bound(2, "g")
    space.delete("jobs", "g", propagationPolicy="Background")
    space.until(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in space.pods("g")), lambda: "pods being deleted"
    )
    space.ends(*pods, exit_code=143)
    space.wait_gone("workloads", "g")
    if space.release.has_pod_groups:
        space.wait_gone("podgroups", "g")


def test_pods_of_a_placed_gang_stay_when_their_group_goes(space: Space) -> None:
    gang(space, "g", 2)
    space.runs(*space.wait_bound(2, "g"))
    space.delete("workloads", "g")
    space.wait_gone("workloads", "g")
    assert ["deletionTimestamp" in pod["metadata"] for pod in space.pods("g")] == [False, False]


def test_gang_completes_as_any_job(space: Space) -> None:
    gang(space, "g", 3, finalizers=(FOREIGN,))
    space.ends(*space.wait_bound(3, "g"))
    job = space.wait_job("Complete", job="g")
    assert job["status"]["completedIndexes"] == "0-2"


def test_link_to_the_group_is_kept_in_the_pods(space: Space) -> None:
    gang(space, "g", 2)
    wanted = link(space, "g")
    for pod in space.wait_bound(2, "g"):
        assert {field: pod["spec"].get(field) for field in wanted} == wanted


def test_replacement_waits_for_ever_once_a_rank_has_ended(space: Space) -> None:
    """kubernetes#142330: the scheduler forgets members that have ended, so a lost rank cannot be replaced."""
    gang(space, "g", 2, backoffLimitPerIndex=1, backoffLimit=None)
    first, second = space.wait_bound(2, "g")
    space.ends(first)
    space.until(lambda: space.job("g")["status"].get("succeeded"), lambda: f"one success: {space.job('g')['status']}")
    space.ends(second, exit_code=1)
    space.wait_pods(3, "g")
    space.create("jobs", indexed("witness", 1))
    space.wait_bound(1, "witness")
    (waiting,) = [pod for pod in space.pods("g") if "nodeName" not in pod["spec"]]
    assert waiting["status"]["phase"] == "Pending"
    assert "conditions" not in waiting["status"]


def test_scheduling_of_a_job_is_dropped_without_its_gate(space: Space) -> None:
    """Silently; so a client has to look at what was stored."""
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    job = space.create("jobs", indexed("g", 2, scheduling=policy))
    assert "scheduling" not in job["spec"]
    space.wait_bound(2, "g")
    assert space.listed("workloads") == []
