"""The manager of Kueue is away, so the API server refuses every write of a Job, or has another configuration."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.queues.following import following, until
from tests.queues.test_kueue_gangs import pods_of

if TYPE_CHECKING:
    import pytest

    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

AWAY_S: Final = 20.0
"""Longer than a submission repeats a request after any other failure."""


async def test_submission_repeats_its_requests_and_a_waiting_gang_goes_on(
    kueue: Kueue, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    kueue.create_queue(tenant.namespace)
    caplog.set_level(logging.WARNING, "airflow_provider_gangjobs")
    async with GangService.connect(tenant.config) as gangs:
        first = await submit_gang(gangs, gang_spec(queue_name="team", cpu="2"), "waits")
        async with following(tenant, first) as waiting:
            await waiting.line("maximum capacity (4)")
            await asyncio.to_thread(kueue.stop)
            try:
                submitting = asyncio.create_task(submit_gang(gangs, gang_spec(queue_name="team"), "submitted"))
                await asyncio.sleep(AWAY_S)
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
