"""A gang of two roles on real control planes of each release, with only the documented permissions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, submit_gang
from tests.cluster.releases import RELEASES
from tests.cluster.role_gangs import SLEEP, leader_and_workers
from tests.ends import Killed, kill
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from tests.cluster.tenant import Tenant


async def test_ranks_of_both_roles_connect_and_their_results_are_returned(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers())
        assert submission.decision == f"gang:{RELEASES[tenant.plane.release].dialect}"
        event = await follow_gang(tenant, submission)
        outcomes = await gangs.outcomes(submission.ref)
        pods = await gangs.client.list(PODS, tenant.namespace)
    assert event.status is Status.SUCCEEDED, event
    found = [(outcome.role, outcome.role_rank, outcome.message) for outcome in outcomes]
    assert found == [("leader", 0, "[1, 2]"), ("worker", 0, "[0]"), ("worker", 1, "[0]")]
    assert [pod["metadata"].get("finalizers") for pod in pods] == [None] * 3
    assert tenant.forbidden_requests() == []


async def test_worker_that_fails_ends_the_leader(tenant: Tenant) -> None:
    code = "import os, sys, time\nif os.environ['GANG_ROLE_RANK'] == '1': sys.exit(3)\ntime.sleep(3000)"
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(leader=SLEEP, worker=code))
        event = await follow_gang(tenant, submission)
        jobs = await gangs.client.list(JOBS, tenant.namespace)
    assert (event.status, event.reason) == (Status.FAILED, "AppFailed")
    assert event.message.startswith("rank 1 of role worker exited with code 3")
    ended = {condition["type"] for job in jobs for condition in job["status"]["conditions"]}
    assert {"Failed"} <= ended
    assert len(jobs) == 2


async def test_leader_that_ends_first_does_not_end_the_workers(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        spec = leader_and_workers(leader="pass", worker="import time; time.sleep(4)", ttl_after_finished_s=0)
        submission = await submit_gang(gangs, spec)
        event = await follow_gang(tenant, submission)
    assert (event.status, event.counts["succeeded"]) == (Status.SUCCEEDED, 3)


async def test_roles_that_fit_only_one_by_one_place_no_pod(tenant: Tenant) -> None:
    """A node has 4 CPUs. The leader alone would fit, and so would the two workers."""
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(leader=SLEEP, worker=SLEEP, cpu="3"))
        following = asyncio.create_task(follow_gang(tenant, submission, Deadlines(assemble_s=6)))
        bound = set()
        while not following.done():
            pods = await gangs.client.list(PODS, tenant.namespace)
            bound |= {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}
            await asyncio.sleep(0.2)
        event = await following
    assert (event.status, event.phase, event.counts["placed"]) == (Status.TIMEOUT, "assembling", 0)
    assert bound == set()


async def test_kill_deletes_the_jobs_and_pods_of_both_roles(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(leader=SLEEP, worker=SLEEP))
        await running(gangs, submission.ref)
        assert await kill(gangs.client, submission.ref, "somebody") is Killed.DELETED
        async with asyncio.timeout(TIMEOUT_S):
            while await left(gangs, tenant.namespace):  # noqa: ASYNC110 - another process deletes them
                await asyncio.sleep(0.1)


async def test_stop_ends_the_jobs_of_both_roles(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(leader=SLEEP, worker=SLEEP))
        await running(gangs, submission.ref)
        assert await gangs.stop(submission.ref, reason="by hand")
        event = await follow_gang(tenant, submission)
        assert (event.status, event.reason) == (Status.FAILED, "Stopped")
        assert (await submit_gang(gangs, leader_and_workers())).ref != submission.ref


async def running(gangs: GangService, ref: GangRef) -> None:
    """Wait until all pods run."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            pods = await gangs.client.list(PODS, ref.namespace)
            if sum(pod["status"].get("phase") == "Running" for pod in pods) == 3:
                return
            await asyncio.sleep(0.1)


async def left(gangs: GangService, namespace: str) -> bool:
    """Return whether a Job or a pod is left."""
    return bool(await gangs.client.list(PODS, namespace) or await gangs.client.list(JOBS, namespace))
