"""What deleting a Job does while a foreign finalizer holds its pods, under each propagation policy and by TTL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.manifests import indexed
from tests.conformance.space import FOREIGN

if TYPE_CHECKING:
    from tests.conformance.space import Obj, Space


@pytest.fixture
def held(space: Space) -> list[Obj]:
    """The pods of a Job that is complete; its own finalizer is off, ours is on."""
    space.create("jobs", indexed(finalizers=(FOREIGN,)))
    pods = space.wait_pods(2)
    space.ends(*pods, message="a result")
    space.wait_job("Complete")
    space.until(lambda: [pod["metadata"]["finalizers"] for pod in space.pods()] == [[FOREIGN]] * 2, lambda: "only ours")
    return pods


def told_to_go(space: Space) -> list[bool]:
    return ["deletionTimestamp" in pod["metadata"] for pod in space.pods()]


def messages(space: Space) -> list[str]:
    return [pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] for pod in space.pods()]


def test_background_deletion_leaves_the_pods_to_us(space: Space, held: list[Obj]) -> None:
    space.delete("jobs", "j", propagationPolicy="Background")
    space.wait_gone("jobs", "j")
    space.until(lambda: told_to_go(space) == [True, True], lambda: "pods that are being deleted")
    assert messages(space) == ["a result"] * 2
    space.lets_go(*held)
    assert space.pods() == []


def test_foreground_deletion_keeps_the_job_until_we_let_go(space: Space, held: list[Obj]) -> None:
    space.delete("jobs", "j", propagationPolicy="Foreground")
    space.until(lambda: told_to_go(space) == [True, True], lambda: "pods that are being deleted")
    job = space.job()
    assert job["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert job["status"]["completedIndexes"] == "0,1"
    space.lets_go(*held)
    space.wait_gone("jobs", "j")


def test_orphaned_pods_stay_as_they_are(space: Space, held: list[Obj]) -> None:
    space.delete("jobs", "j", propagationPolicy="Orphan")
    space.wait_gone("jobs", "j")
    assert ["ownerReferences" in pod["metadata"] for pod in space.pods()] == [False, False]
    assert told_to_go(space) == [False, False]
    assert [pod["metadata"]["finalizers"] for pod in space.pods()] == [[FOREIGN]] * 2
    assert held


def test_deletion_that_names_no_policy_orphans(space: Space, held: list[Obj]) -> None:
    """So it always has to be named."""
    space.delete("jobs", "j")
    space.wait_gone("jobs", "j")
    assert told_to_go(space) == [False, False]
    assert held


def test_expired_job_stays_until_we_let_go(space: Space) -> None:
    space.create("jobs", indexed(finalizers=(FOREIGN,), ttlSecondsAfterFinished=1))
    pods = space.wait_pods(2)
    space.ends(*pods)
    space.until(lambda: told_to_go(space) == [True, True], lambda: "pods that are being deleted")
    assert space.job()["metadata"]["finalizers"] == ["foregroundDeletion"]
    space.lets_go(*pods)
    space.wait_gone("jobs", "j")
