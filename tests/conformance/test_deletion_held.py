"""What deleting a Job does while a foreign finalizer holds its pods, under each propagation policy and by TTL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import indexed
from tests.conformance.namespace import FOREIGN

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace, Obj


@pytest.fixture
def held(namespace: Namespace) -> list[Obj]:
    """Create a complete Job whose pods have only a foreign finalizer. Return the pods."""
    namespace.create("jobs", indexed(finalizers=(FOREIGN,)))
    pods = namespace.wait_pods(2)
    namespace.set_terminated(*pods, message="a result")
    namespace.wait_job("Complete")
    namespace.wait_finalizers(FOREIGN)
    return pods


def deletion_requested(namespace: Namespace) -> list[bool]:
    return ["deletionTimestamp" in pod["metadata"] for pod in namespace.pods()]


def messages(namespace: Namespace) -> list[str]:
    return [pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] for pod in namespace.pods()]


def test_background_deletion_keeps_pods_with_a_finalizer(namespace: Namespace, held: list[Obj]) -> None:
    namespace.delete_job("Background")
    namespace.wait_deletion_requested()
    assert messages(namespace) == ["a result"] * 2
    namespace.remove_finalizer(*held)
    assert namespace.pods() == []


def test_foreground_deletion_keeps_the_job_until_its_pods_are_released(namespace: Namespace, held: list[Obj]) -> None:
    namespace.delete("jobs", "j", propagationPolicy="Foreground")
    namespace.wait_deletion_requested()
    job = namespace.job()
    assert job["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert job["status"]["completedIndexes"] == "0,1"
    namespace.remove_finalizer(*held)
    namespace.wait_gone("jobs", "j")


@pytest.mark.parametrize("propagation", ["Orphan", None])
def test_orphaned_pods_do_not_change(namespace: Namespace, held: list[Obj], propagation: str | None) -> None:
    """A deletion without a policy orphans the pods too, so a client always names the policy."""
    namespace.delete_job(propagation)
    assert ["ownerReferences" in pod["metadata"] for pod in namespace.pods()] == [False, False]
    assert deletion_requested(namespace) == [False, False]
    assert [pod["metadata"]["finalizers"] for pod in namespace.pods()] == [[FOREIGN]] * 2
    assert held


def test_expired_job_stays_until_its_pods_are_released(namespace: Namespace) -> None:
    namespace.create("jobs", indexed(finalizers=(FOREIGN,), ttlSecondsAfterFinished=1))
    pods = namespace.wait_pods(2)
    namespace.set_terminated(*pods)
    namespace.wait_deletion_requested()
    assert namespace.job()["metadata"]["finalizers"] == ["foregroundDeletion"]
    namespace.remove_finalizer(*pods)
    namespace.wait_gone("jobs", "j")
