"""What deleting a Job does to pods that have not ended, and to what else it owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.manifests import indexed, owner_reference
from tests.conformance.space import FOREIGN

if TYPE_CHECKING:
    from tests.conformance.space import Obj, Space


def test_running_pods_end_and_are_ours_to_release(space: Space) -> None:
    space.add_nodes()
    space.create("jobs", indexed(finalizers=(FOREIGN,)))
    pods = space.wait_bound(2)
    space.runs(*pods)
    space.delete("jobs", "j", propagationPolicy="Background")
    space.wait_gone("jobs", "j")
    space.until(
        lambda: (
            [
                ("deletionTimestamp" in pod["metadata"], pod["metadata"].get("finalizers"), pod["status"]["phase"])
                for pod in space.pods()
            ]
            == [(True, [FOREIGN], "Running")] * 2
        ),
        lambda: f"pods that are ours alone: {[pod['metadata'] for pod in space.pods()]}",
    )
    space.ends(*pods, exit_code=143)
    assert [pod["status"]["phase"] for pod in space.pods()] == ["Failed", "Failed"]
    space.lets_go(*pods)
    assert space.pods() == []


def test_orphaned_pods_run_on_without_tracking(space: Space) -> None:
    space.add_nodes()
    space.create("jobs", indexed())
    space.runs(*space.wait_bound(2))
    space.delete("jobs", "j", propagationPolicy="Orphan")
    space.wait_gone("jobs", "j")
    space.until(lambda: not any(pod["metadata"].get("finalizers") for pod in space.pods()), lambda: "no finalizers")
    assert [("ownerReferences" in pod["metadata"], "deletionTimestamp" in pod["metadata"]) for pod in space.pods()] == [
        (False, False)
    ] * 2


def test_pods_without_a_node_are_gone_with_their_job(space: Space) -> None:
    space.create("jobs", indexed())
    space.wait_pods(2)
    space.delete("jobs", "j", propagationPolicy="Background")
    space.until(lambda: not space.pods(), lambda: "no pods")


def test_held_pods_without_a_node_become_failed(space: Space) -> None:
    """No node will ever say how they ended; the pod collector does, within its round of 20 seconds."""
    space.create("jobs", indexed(finalizers=(FOREIGN,)))
    pods = space.wait_pods(2)
    space.delete("jobs", "j", propagationPolicy="Background")
    space.until(
        lambda: [pod["status"]["phase"] for pod in space.pods()] == ["Failed"] * 2, lambda: f"failed: {space.pods()}"
    )
    space.lets_go(*pods)
    assert space.pods() == []


def test_foreground_deletion_waits_for_running_pods(space: Space) -> None:
    space.add_nodes()
    space.create("jobs", indexed())
    pods = space.wait_bound(2)
    space.runs(*pods)
    space.delete("jobs", "j", propagationPolicy="Foreground")
    space.until(lambda: _going(space.pods()) == [True, True], lambda: "pods that are being deleted")
    assert "deletionTimestamp" in space.job()["metadata"]
    space.ends(*pods, exit_code=143)
    space.wait_gone("jobs", "j")


def test_what_the_job_owns_goes_with_it(space: Space) -> None:
    job = space.create("jobs", indexed(suspend=True))
    space.create("configmaps", {"metadata": {"name": "ledger", "ownerReferences": [owner_reference(job)]}})
    space.delete("jobs", "j", propagationPolicy="Background")
    space.wait_gone("configmaps", "ledger")


def test_object_of_an_owner_that_is_gone_is_collected(space: Space) -> None:
    """The name counts for nothing: another Job of the same name is not the owner."""
    job = space.create("jobs", indexed(suspend=True))
    space.delete("jobs", "j", propagationPolicy="Background")
    space.wait_gone("jobs", "j")
    space.create("jobs", indexed(suspend=True))
    space.create("configmaps", {"metadata": {"name": "late", "ownerReferences": [owner_reference(job)]}})
    space.wait_gone("configmaps", "late")


def _going(pods: list[Obj]) -> list[bool]:
    return ["deletionTimestamp" in pod["metadata"] for pod in pods]
