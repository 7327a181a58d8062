"""A Job that another Job owns, and two Jobs in one group. Gangs with roles rely on both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import group, indexed, link, owner_reference, with_two_nodes
from tests.conformance.namespace import FOREIGN

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace, Obj


def owned_job(namespace: Namespace, owner: Obj, name: str = "other", **spec: object) -> Obj:
    """Create a Job that another Job owns as its controller, and that blocks its deletion in the foreground."""
    job = indexed(name, finalizers=(FOREIGN,), **spec)
    reference = {**owner_reference(owner), "controller": True, "blockOwnerDeletion": True}
    job["metadata"]["ownerReferences"] = [reference]
    return namespace.create("jobs", job)


def test_foreground_deletion_keeps_both_jobs_until_the_pods_of_the_owned_one_are_released(namespace: Namespace) -> None:
    owned_job(namespace, namespace.create("jobs", indexed(suspend=True)))
    pods = namespace.wait_pods(2, "other")
    namespace.delete("jobs", "j", propagationPolicy="Foreground")
    namespace.wait_deletion_requested("other")
    assert [namespace.job(name)["metadata"]["finalizers"] for name in ("j", "other")] == [["foregroundDeletion"]] * 2
    namespace.remove_finalizer(*pods)
    for name in ("other", "j"):
        namespace.wait_gone("jobs", name)


def test_background_deletion_deletes_the_owned_job(namespace: Namespace) -> None:
    owned_job(namespace, namespace.create("jobs", indexed(suspend=True)), suspend=True)
    namespace.delete("jobs", "j", propagationPolicy="Background")
    for name in ("j", "other"):
        namespace.wait_gone("jobs", name)


@pytest.fixture
def two_jobs(namespace: Namespace) -> Namespace:
    return with_two_nodes(namespace)


def create_in_group(namespace: Namespace, least: int) -> None:
    group(namespace, "g", least)
    for name in ("leader", "worker"):
        namespace.create("jobs", indexed(name, pod_spec=link(namespace, "g")))


def test_pods_of_two_jobs_are_placed_as_one_group(two_jobs: Namespace) -> None:
    create_in_group(two_jobs, 4)
    for name in ("leader", "worker"):
        two_jobs.wait_bound(2, name)


def test_pods_of_two_jobs_wait_for_the_rest_of_their_group_and_hold_no_place(two_jobs: Namespace) -> None:
    create_in_group(two_jobs, 5)
    for name in ("leader", "worker"):
        two_jobs.wait_pods(2, name)
    two_jobs.create("jobs", indexed("beside", 4))
    two_jobs.wait_bound(4, "beside")
    assert not [pod for name in ("leader", "worker") for pod in two_jobs.pods(name) if "nodeName" in pod["spec"]]
