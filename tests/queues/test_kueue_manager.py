"""The manager of Kueue is away, so the API server refuses every write of a Job, or has another configuration."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.cluster.role_gangs import leader_and_workers
from tests.queues.following import following, pods_of, until
from tests.queues.test_kueue_roles import end_of, main_job_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

WITH_JOB_SETS: Final = pytest.mark.clusters("job_set_kueue")
SUBMITTING_S: Final = 20.0
"""How long before the end of its absence the submission begins. Longer than a submission repeats a request after any
other failure."""
SHORT: Final = "import time; time.sleep(6)"


@pytest.mark.parametrize(
    "away_s", [SUBMITTING_S, pytest.param(60.0, marks=pytest.mark.slow)], ids=["20 seconds", "a minute"]
)
async def test_submission_repeats_its_requests_and_other_gangs_go_on(
    kueue: Kueue, tenant: Tenant, caplog: pytest.LogCaptureFixture, away_s: float
) -> None:
    kueue.create_queue(tenant.namespace)
    caplog.set_level(logging.WARNING, "airflow_provider_gangjobs")
    async with GangService.connect(tenant.config) as gangs:
        first = await submit_gang(gangs, gang_spec(queue_name="team", cpu="2"), "waits")
        second = await submit_gang(gangs, gang_spec(queue_name="team", code=SHORT), "runs")
        async with following(tenant, first) as waiting, following(tenant, second) as running:
            await waiting.line("maximum capacity (4)")
            await running.line("running: 3/3")
            await asyncio.to_thread(kueue.stop)
            try:
                await asyncio.sleep(away_s - SUBMITTING_S)
                submitting = asyncio.create_task(submit_gang(gangs, gang_spec(queue_name="team"), "submitted"))
                await asyncio.sleep(SUBMITTING_S)
                assert (await running.event()).status is Status.SUCCEEDED
            finally:
                await asyncio.to_thread(kueue.start)
            async with following(tenant, await submitting) as submitted:
                assert (await submitted.event()).status is Status.SUCCEEDED
            assert waiting.task is not None
            assert not waiting.task.done()
    told = [record.getMessage() for record in caplog.records if "webhook" in record.getMessage()]
    assert 1 <= len(told) <= 4, told  # one line for each request that is repeated


@pytest.mark.parametrize("gang", ["required", "off"])
async def test_gang_without_a_queue_is_refused_where_every_job_needs_one(
    kueue: Kueue, tenant: Tenant, gang: str
) -> None:
    with managing_all_jobs(kueue):
        async with GangService.connect(tenant.config) as gangs:
            with pytest.raises(InvalidGangSpec, match="manageJobsWithoutQueueName"):
                await submit_gang(gangs, gang_spec(gang=gang))
    assert stored_writes(tenant) == []


async def test_gang_without_a_queue_says_why_kueue_has_suspended_it(kueue: Kueue, tenant: Tenant) -> None:
    """The configuration of Kueue is changed after the submission."""
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(code="import time; time.sleep(3000)"))
        async with following(tenant, submission, Deadlines(queue_s=8)) as gang:
            with managing_all_jobs(kueue):
                await gang.line("it lets only Jobs of a queue run here")
                event = await gang.event()
                assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.queued")
                await until(lambda: not pods_of(tenant))


def stored_writes(tenant: Tenant) -> list[str]:
    """Return the URIs of the tenant's writes that are no dry runs."""
    writes = [event["requestURI"] for event in tenant.audited() if event["verb"] not in {"get", "list"}]
    return [uri for uri in writes if "dryRun=All" not in uri]


@contextmanager
def managing_all_jobs(kueue: Kueue) -> Iterator[None]:
    """Let Kueue manage Jobs that name no queue, too, while the block runs."""
    kueue.stop()
    before = kueue.config
    kueue.config = {**before, "manageJobsWithoutQueueName": True}
    kueue.start()
    try:
        yield
    finally:
        kueue.stop()
        kueue.config = before
        kueue.start()


@WITH_JOB_SETS
async def test_roles_without_a_queue_are_refused_where_every_job_needs_one(kueue: Kueue, tenant: Tenant) -> None:
    with managing_all_jobs(kueue):
        async with GangService.connect(tenant.config) as gangs:
            with pytest.raises(GangUnsupported, match="manageJobsWithoutQueueName"):
                await submit_gang(gangs, leader_and_workers())
    assert stored_writes(tenant) == []


@WITH_JOB_SETS
@pytest.mark.parametrize(
    ("code", "status", "end"),
    [(SHORT, Status.SUCCEEDED, "Complete"), (f"{SHORT}; raise SystemExit(3)", Status.FAILED, "Failed")],
    ids=["succeeds", "fails"],
)
async def test_roles_in_a_queue_run_to_their_end_where_every_job_needs_one(
    kueue: Kueue, tenant: Tenant, queue: str, code: str, status: Status, end: str
) -> None:
    """Kueue suspends the main Job, which names no queue and has no pods."""
    with managing_all_jobs(kueue):
        async with GangService.connect(tenant.config) as gangs:
            programs = {"leader": SHORT, "worker": code}
            spec = leader_and_workers(**programs, queue_name="team", gang="preferred", termination_grace_s=1)
            submission = await submit_gang(gangs, spec)
            async with following(tenant, submission) as gang:
                await gang.line("running: 3/3")
                assert main_job_of(tenant, submission)["spec"]["suspend"]
                event = await gang.event()
            await until(lambda: end_of(tenant, submission) == [end])
    assert event.status is status, event


@WITH_JOB_SETS
async def test_roles_are_refused_where_the_cluster_gives_each_job_a_queue(kueue: Kueue, tenant: Tenant) -> None:
    kueue.create_queue(tenant.namespace, name="default")
    kueue.create_queue(tenant.namespace)
    async with GangService.connect(tenant.config) as gangs:
        for more in ({}, {"queue_name": "team", "gang": "preferred"}):
            with pytest.raises(GangUnsupported, match="Kueue's queue default"):
                await submit_gang(gangs, leader_and_workers(**more))
        assert await gangs.client.list(JOBS, tenant.namespace) == []
