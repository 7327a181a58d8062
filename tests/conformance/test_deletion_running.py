"""What deleting a Job does to pods that have not ended, and to what else it owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import indexed, owner_reference
from tests.conformance.namespace import FOREIGN

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace


def test_running_pods_of_a_deleted_job_end_and_wait_for_their_release(namespace: Namespace) -> None:
    pods = namespace.run_job(indexed(finalizers=(FOREIGN,)))
    namespace.delete_job("Background")
    namespace.wait_deletion_requested()
    namespace.wait_finalizers(FOREIGN)
    assert [pod["status"]["phase"] for pod in namespace.pods()] == ["Running", "Running"]
    namespace.set_terminated(*pods, exit_code=143)
    assert [pod["status"]["phase"] for pod in namespace.pods()] == ["Failed", "Failed"]
    namespace.remove_finalizer(*pods)
    assert namespace.pods() == []


def test_orphaned_pods_run_on_without_tracking(namespace: Namespace) -> None:
    namespace.run_job(indexed())
    namespace.delete_job("Orphan")
    namespace.wait_finalizers()
    assert [
        ("ownerReferences" in pod["metadata"], "deletionTimestamp" in pod["metadata"]) for pod in namespace.pods()
    ] == [(False, False)] * 2


def test_pods_without_a_node_are_deleted_with_their_job(namespace: Namespace) -> None:
    namespace.create("jobs", indexed())
    namespace.wait_pods(2)
    namespace.delete("jobs", "j", propagationPolicy="Background")
    namespace.wait_no_pods()


@pytest.mark.long_wait
def test_held_pods_without_a_node_become_failed(namespace: Namespace) -> None:
    """No node reports their end. The pod garbage collector does, which runs every 20 seconds."""
    namespace.create("jobs", indexed(finalizers=(FOREIGN,)))
    pods = namespace.wait_pods(2)
    namespace.delete("jobs", "j", propagationPolicy="Background")
    namespace.wait_until(
        lambda: [pod["status"]["phase"] for pod in namespace.pods()] == ["Failed"] * 2,
        lambda: f"failed: {namespace.pods()}",
    )
    namespace.remove_finalizer(*pods)
    assert namespace.pods() == []


def test_foreground_deletion_waits_for_running_pods(namespace: Namespace) -> None:
    pods = namespace.run_job(indexed())
    namespace.delete("jobs", "j", propagationPolicy="Foreground")
    namespace.wait_deletion_requested()
    assert "deletionTimestamp" in namespace.job()["metadata"]
    namespace.set_terminated(*pods, exit_code=143)
    namespace.wait_gone("jobs", "j")


def test_job_controller_removes_its_finalizer_from_running_pods_of_a_deleted_job(namespace: Namespace) -> None:
    """The controller syncs a Job in one thread, so it creates no other pod of this Job."""
    namespace.run_job(indexed(finalizers=(FOREIGN,)))
    namespace.delete("jobs", "j", propagationPolicy="Foreground")
    namespace.wait_finalizers(FOREIGN)
    assert [pod["status"]["phase"] for pod in namespace.pods()] == ["Running", "Running"]
    namespace.remove_finalizer(*namespace.pods())
    assert "deletionTimestamp" in namespace.job()["metadata"]


def test_objects_that_the_job_owns_are_deleted_with_it(namespace: Namespace) -> None:
    job = namespace.create("jobs", indexed(suspend=True))
    namespace.create("configmaps", {"metadata": {"name": "ledger", "ownerReferences": [owner_reference(job)]}})
    namespace.delete("jobs", "j", propagationPolicy="Background")
    namespace.wait_gone("configmaps", "ledger")


def test_object_of_an_owner_that_is_gone_is_collected(namespace: Namespace) -> None:
    """Another Job of the same name is not the owner."""
    job = namespace.create("jobs", indexed(suspend=True))
    namespace.delete_job("Background")
    namespace.create("jobs", indexed(suspend=True))
    namespace.create("configmaps", {"metadata": {"name": "late", "ownerReferences": [owner_reference(job)]}})
    namespace.wait_gone("configmaps", "late")
