"""The manager of Kueue is away, so the API server refuses every write of a Job, or has another configuration."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import pytest

from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.queues.following import following, pods_of, until

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

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


async def test_gang_without_a_queue_says_so_where_every_job_needs_one(kueue: Kueue, tenant: Tenant) -> None:
    kueue.stop()
    kueue.config, before = {"manageJobsWithoutQueueName": True}, kueue.config
    kueue.start()
    try:
        async with GangService.connect(tenant.config) as gangs:
            submission = await submit_gang(gangs, gang_spec())
            async with following(tenant, submission, Deadlines(queue_s=8)) as gang:
                await gang.line("it lets only Jobs of a queue run here")
                event = await gang.event()
            assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.queued.queue-refused")
            await until(lambda: not pods_of(tenant))
    finally:
        kueue.stop()
        kueue.config = before
        kueue.start()
