"""The pods of a deleted gang are released, also if the Job controller creates pods meanwhile or a process dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.ending.delete_gang import delete_job, discard
from airflow_provider_gangjobs.ending.kill import begin_kill
from airflow_provider_gangjobs.ending.release import QUIET_S, drain_pods
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.kills import kill
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef

CLAIM = "this-try"


def claimed_gang(plane: VirtualControlPlane, workers: int, **spec: object) -> GangRef:
    ref = plane.submit(workers=workers, **spec)
    mark = {"metadata": {"annotations": {ANNOTATION_CLAIM: CLAIM}}}
    plane.registry.patch(JOBS, ref.name, NAMESPACE, mark, PatchKind.MERGE)
    return ref


ENDINGS: dict[str, Callable[[GangService, GangRef], Awaitable[object]]] = {
    "a kill": lambda gangs, ref: kill(gangs.client, ref, CLAIM),
    "a deletion by hand": lambda gangs, ref: gangs.delete(ref),
    "a discard": lambda gangs, ref: discard(gangs.client, ref, CLAIM),
}


@pytest.mark.parametrize(
    ("ending", "created"),
    [("a kill", 0), pytest.param("a kill", 1, marks=pytest.mark.slow), ("a deletion by hand", 40), ("a discard", 40)],
)
@in_virtual_time
async def test_end_while_pods_are_created_leaves_no_pod(ending, created):
    async with VirtualControlPlane.running(nodes=5, cpu="64") as plane:
        ref = claimed_gang(plane, 300)
        await plane.until(lambda: len(plane.pods()) >= created)

        await ENDINGS[ending](GangService(plane.client), ref)

        await plane.until(lambda: not plane.pods() and plane.job() is None, within_s=60)


@in_virtual_time
async def test_end_of_running_gang_does_not_wait_for_its_pods():
    async with VirtualControlPlane.running() as plane:
        ref = claimed_gang(plane, 4)
        await plane.until(lambda: plane.running_ranks() == 4)
        before = plane.clock.now()

        await kill(plane.client, ref, CLAIM)

        assert (plane.held(), (plane.clock.now() - before).total_seconds() < QUIET_S) == ([], True)


@in_virtual_time
async def test_job_stays_until_its_pods_are_released():
    """The process that deletes the Job dies before it has released a pod."""
    async with VirtualControlPlane.running() as plane:
        ref = claimed_gang(plane, 4)
        await plane.until(lambda: plane.running_ranks() == 4)
        await begin_kill(plane.client, ref, CLAIM)
        await plane.until(lambda: plane.running_ranks() == 0)
        job = plane.job()
        assert (job is not None and "deletionTimestamp" in job["metadata"], len(plane.held())) == (True, 4)

        await kill(plane.client, ref, CLAIM)

        await plane.until(lambda: plane.job() is None and not plane.pods(), within_s=60)


@in_virtual_time
async def test_release_that_fails_is_repeated():
    async with VirtualControlPlane.running() as plane:
        ref = claimed_gang(plane, 4)
        await plane.until(lambda: plane.running_ranks() == 4)
        plane.arm("status", code=500, method="PATCH", times=60)

        await kill(plane.client, ref, CLAIM)

        await plane.until(lambda: not plane.pods(), within_s=60)


@in_virtual_time
async def test_drain_that_does_not_succeed_is_reported(caplog):
    async with VirtualControlPlane.running() as plane:
        ref = claimed_gang(plane, 4)
        await plane.until(lambda: plane.running_ranks() == 4)
        await delete_job(plane.client, ref)
        plane.arm("status", code=403, method="PATCH", times=None)

        assert not await drain_pods(plane.client, ref)

        assert "gangjobs.airflow/harvest" in caplog.text


@in_virtual_time
async def test_gang_that_never_ran_is_deleted_at_once():
    async with VirtualControlPlane.running() as plane:
        ref = claimed_gang(plane, 4, suspend=True)
        before = plane.clock.now()

        await kill(plane.client, ref, CLAIM)

        assert (plane.job(), (plane.clock.now() - before).total_seconds() < 1) == (None, True)


@in_virtual_time
async def test_pods_of_a_job_that_is_gone_are_released_by_a_kill():
    """A user deletes the Job in the background, and ends the task before its trigger sees the deletion."""
    async with VirtualControlPlane.running() as plane:
        ref = claimed_gang(plane, 4)
        await plane.until(lambda: plane.running_ranks() == 4)
        plane.delete_job(propagation="Background")

        await kill(plane.client, ref, CLAIM)

        await plane.until(lambda: not plane.pods(), within_s=60)
