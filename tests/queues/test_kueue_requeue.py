"""Gangs in a queue of the real Kueue that counts a quota only: they return to their queue if they do not assemble."""

from __future__ import annotations

import asyncio
from itertools import cycle, product
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.gang.state.queue_wait import REQUEUES_MAX
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_REQUEUES
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.follow import follow
from tests.cluster.gangs import gang_spec, submit_gang
from tests.cluster.role_gangs import leader_and_workers
from tests.crashes import CrashingAtFirst, dies
from tests.queues.following import following, pods_of, until
from tests.queues.tenants import kueue_tenant
from tests.replies import accepted
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

BARE = pytest.mark.clusters("bare_kueue")
"""Where the Workload API is served, it would place a gang of one Job."""
WITH_JOB_SETS = pytest.mark.clusters("job_set_kueue")
SLEEP = "import time; time.sleep(3000)"
IN_TIME = Deadlines(assemble_s=8)
WIDE = gang_spec(3, code=SLEEP, cpu="2600m", gang="preferred", queue_name="team")
"""Fits the sum of two nodes of 4 CPUs, and only two of its pods fit on the nodes."""


FITS_LATER = gang_spec(3, code=SLEEP, cpu="1300m", gang="preferred", queue_name="team")
"""Beside a gang of 2 pods of 2500m, two of its pods fit on the nodes. Alone, all fit."""
ROLES_FIT_LATER = leader_and_workers(leader=SLEEP, worker=SLEEP, cpu="1300m", gang="preferred", queue_name="team")


@pytest.fixture
def quota_only(kueue: Kueue, tenant: Tenant) -> str:
    """The ClusterQueue of the queue `team`, with more quota than the nodes have CPUs."""
    return kueue.create_queue(tenant.namespace, cpu="20")


def set_requeues(tenant: Tenant, submission: Submission, value: str) -> None:
    """Let the gang have been returned to its queue before."""
    with tenant.plane.client() as admin:
        reply = admin.patch(
            f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{submission.ref.name}",
            json={"metadata": {"annotations": {ANNOTATION_REQUEUES: value}}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert reply.is_success, reply.text


def requeues_of(tenant: Tenant, submission: Submission) -> str:
    """Return the annotation of the Job."""
    with tenant.plane.client() as admin:
        reply = admin.get(f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{submission.ref.name}")
    annotations: dict[str, str] = accepted(reply)["metadata"]["annotations"]
    return annotations[ANNOTATION_REQUEUES]


async def placed_in_part(tenant: Tenant, submission: Submission) -> None:
    """Wait until two of three pods have a node."""
    await until(lambda: sum("nodeName" in pod["spec"] for pod in pods_of(tenant, submission)) == 2)


async def submit_behind_another(gangs: GangService, tenant: Tenant, spec: GangSpec) -> tuple[Submission, Submission]:
    """Submit a gang that takes a part of each node, and then the gang of `spec`. Return both."""
    first = await submit_gang(gangs, gang_spec(2, code=SLEEP, cpu="2500m", gang="off", queue_name="team"), "first")
    await until(lambda: len(pods_of(tenant, first)) == 2)
    return first, await submit_gang(gangs, spec, "second")


async def returns_and_runs(
    kueue: Kueue, tenant: Tenant, queue: str, spec: GangSpec, deadlines_after: Deadlines = IN_TIME
) -> None:
    """Submit a gang of which two of three pods fit, let it return to its queue once, and run when there is room."""
    async with GangService.connect(tenant.config) as gangs:
        first, second = await submit_behind_another(gangs, tenant, spec)
        assert second.decision.startswith("basic:")
        async with following(tenant, second, IN_TIME) as lines:
            await lines.line("Returned to Kueue queue team (1 of at most 3 times)")
            await until(lambda: not pods_of(tenant, second))
            await until(lambda: kueue.used_cpu(queue) == "5")
        await gangs.delete(first.ref)
        async with following(tenant, second, deadlines_after) as lines:  # another triggerer continues
            await lines.line("running: 3/3")
    assert tenant.forbidden_requests() == []


@BARE
@pytest.mark.parametrize(
    "deadlines_after",
    [pytest.param(IN_TIME, id="by its task"), pytest.param(Deadlines(), id="by a try without assemble_timeout")],
)
async def test_gang_of_which_two_of_three_pods_fit_is_queued_again_and_runs_when_there_is_room(
    kueue: Kueue, tenant: Tenant, quota_only: str, deadlines_after: Deadlines
) -> None:
    await returns_and_runs(kueue, tenant, quota_only, FITS_LATER, deadlines_after)


@WITH_JOB_SETS
async def test_roles_of_which_two_of_three_pods_fit_are_queued_again_and_run_when_there_is_room(
    kueue: Kueue, tenant: Tenant, quota_only: str
) -> None:
    await returns_and_runs(kueue, tenant, quota_only, ROLES_FIT_LATER)


async def returns_once_although_its_followers_die(kueue: Kueue, tenant: Tenant, queue: str, spec: GangSpec) -> None:
    """Let a gang of which two of three pods fit return to its queue, and let a follower die at each of its writes."""
    async with GangService.connect(tenant.config) as gangs:
        first, second = await submit_behind_another(gangs, tenant, spec)
        mark, workload = "PATCH jobs", "PATCH workloads"
        writes: list[tuple[str, bool]] = []
        for applied in cycle((False, True)):
            process = CrashingAtFirst(gangs.client, {mark, workload}, applied=applied)
            with dies(process):
                async with asyncio.timeout(TIMEOUT_S):
                    await follow(process, second.ref, deadlines=IN_TIME, report=lambda observation: None)
            writes.append((process.request, applied))
            if requeues_of(tenant, second) == "1":
                break
        # A write is repeated if the Job has changed since it was read.
        assert len(writes) >= 8
        assert set(writes) == set(product((mark, workload), (False, True)))
        await gangs.delete(first.ref)
        async with following(tenant, second) as lines:
            await lines.line("running: 3/3")
    assert requeues_of(tenant, second) == "1"
    await until(lambda: kueue.used_cpu(queue) == "3900m")
    assert tenant.forbidden_requests() == []


@BARE
async def test_gang_whose_followers_die_at_each_write_returns_once(
    kueue: Kueue, tenant: Tenant, quota_only: str
) -> None:
    await returns_once_although_its_followers_die(kueue, tenant, quota_only, FITS_LATER)


@WITH_JOB_SETS
async def test_roles_whose_followers_die_at_each_write_return_once(
    kueue: Kueue, tenant: Tenant, quota_only: str
) -> None:
    await returns_once_although_its_followers_die(kueue, tenant, quota_only, ROLES_FIT_LATER)


async def ends_after_its_last_return(kueue: Kueue, tenant: Tenant, queue: str, spec: GangSpec) -> None:
    """Submit a gang of which two of three pods fit, and which has been returned often enough."""
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, spec)
        await placed_in_part(tenant, submission)
        set_requeues(tenant, submission, str(REQUEUES_MAX))
        async with following(tenant, submission, IN_TIME) as lines:
            event = await lines.event()
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling.unschedulable")
    assert f"Kueue let the gang run {REQUEUES_MAX + 1} times" in event.message
    await until(lambda: kueue.used_cpu(queue) == "0")


@BARE
async def test_gang_that_was_returned_often_enough_ends_with_the_assemble_error(
    kueue: Kueue, tenant: Tenant, quota_only: str
) -> None:
    await ends_after_its_last_return(kueue, tenant, quota_only, WIDE)


@WITH_JOB_SETS
async def test_roles_that_were_returned_often_enough_end_with_the_assemble_error(
    kueue: Kueue, tenant: Tenant, quota_only: str
) -> None:
    spec = leader_and_workers(leader=SLEEP, worker=SLEEP, cpu="2600m", gang="preferred", queue_name="team")
    await ends_after_its_last_return(kueue, tenant, quota_only, spec)


@BARE
async def test_gang_without_the_rights_of_kueue_is_not_returned_and_ends(kueue: Kueue) -> None:
    with kueue_tenant(kueue.plane, "cannot be returned", role=False, cluster_role=False) as tenant:
        kueue.create_queue(tenant.namespace, cpu="20")
        async with GangService.connect(tenant.config) as gangs:
            submission = await submit_gang(gangs, WIDE)
            async with following(tenant, submission, IN_TIME) as lines:
                event = await lines.event()
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling.unschedulable")
    assert "permission to change Kueue's Workloads" in event.message
