"""Workload and PodGroup: protection, collection, links of the pods, and the deletion of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import gang, group, indexed, link, with_two_nodes
from tests.conformance.namespace import FOREIGN

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace

PROTECTION = "scheduling.k8s.io/podgroup-protection"


@pytest.fixture
def namespace(namespace: Namespace) -> Namespace:
    return with_two_nodes(namespace)


def test_group_is_protected_while_its_pods_may_run(namespace: Namespace) -> None:
    gang(namespace, "g", 2)
    pods = namespace.wait_bound(2, "g")
    assert namespace.get("podgroups", "g")["metadata"]["finalizers"] == [PROTECTION]
    namespace.delete("podgroups", "g")
    assert "deletionTimestamp" in namespace.get("podgroups", "g")["metadata"]
    namespace.set_terminated(*pods)
    namespace.wait_gone("podgroups", "g")


def test_held_pods_that_have_ended_do_not_keep_the_group(namespace: Namespace) -> None:
    gang(namespace, "g", 2, finalizers=(FOREIGN,))
    namespace.set_terminated(*namespace.wait_bound(2, "g"))
    namespace.wait_job("Complete", job="g")
    namespace.delete("podgroups", "g")
    namespace.wait_gone("podgroups", "g")
    assert len(namespace.pods("g")) == 2


def test_unused_group_is_deleted_at_once(namespace: Namespace) -> None:
    group(namespace, "g", 2)
    namespace.delete("podgroups", "g")
    namespace.wait_gone("podgroups", "g")


def test_group_is_deleted_with_its_job(namespace: Namespace) -> None:
    gang(namespace, "g", 2)
    pods = namespace.wait_bound(2, "g")
    namespace.delete("jobs", "g", propagationPolicy="Background")
    namespace.wait_deletion_requested("g")
    namespace.set_terminated(*pods, exit_code=143)
    namespace.wait_gone("workloads", "g")
    namespace.wait_gone("podgroups", "g")


def test_pods_of_a_placed_gang_stay_when_their_group_is_deleted(namespace: Namespace) -> None:
    gang(namespace, "g", 2)
    namespace.set_running(*namespace.wait_bound(2, "g"))
    namespace.delete("workloads", "g")
    namespace.wait_gone("workloads", "g")
    assert ["deletionTimestamp" in pod["metadata"] for pod in namespace.pods("g")] == [False, False]


def test_gang_completes_like_any_job(namespace: Namespace) -> None:
    gang(namespace, "g", 3, finalizers=(FOREIGN,))
    namespace.set_terminated(*namespace.wait_bound(3, "g"))
    job = namespace.wait_job("Complete", job="g")
    assert job["status"]["completedIndexes"] == "0-2"


def test_link_to_the_group_is_kept_in_the_pods(namespace: Namespace) -> None:
    gang(namespace, "g", 2)
    wanted = link(namespace, "g")
    for pod in namespace.wait_bound(2, "g"):
        assert {field: pod["spec"].get(field) for field in wanted} == wanted


@pytest.mark.long_wait
def test_replacement_is_never_placed_once_a_rank_has_ended(namespace: Namespace) -> None:
    """kubernetes#142330: the scheduler forgets members that have ended, so a lost rank cannot be replaced."""
    gang(namespace, "g", 2, backoffLimitPerIndex=1, backoffLimit=None)
    first, second = namespace.wait_bound(2, "g")
    namespace.set_terminated(first)
    namespace.wait_status("g", succeeded=...)
    namespace.set_terminated(second, exit_code=1)
    namespace.wait_pods(3, "g")
    namespace.create("jobs", indexed("witness", 1))
    namespace.wait_bound(1, "witness")
    (waiting,) = [pod for pod in namespace.pods("g") if "nodeName" not in pod["spec"]]
    assert waiting["status"]["phase"] == "Pending"
    assert "conditions" not in waiting["status"]


def test_scheduling_of_a_job_is_dropped_without_its_gate(namespace: Namespace) -> None:
    """The server drops the field silently, so a client has to check the stored Job."""
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    job = namespace.create("jobs", indexed("g", 2, scheduling=policy))
    assert "scheduling" not in job["spec"]
    namespace.wait_bound(2, "g")
    assert namespace.list_objects("workloads") == []
