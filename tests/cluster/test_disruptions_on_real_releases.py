"""A gang of higher priority preempts a gang, by the scheduler of each release, and the next attempt runs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import disruption_of
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import NextAttemptRule, SubmissionRequest
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.ends import kill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
FIRST_ATTEMPT_IS_ENDLESS = "import os, time; time.sleep(3000 if os.environ['GANG_ATTEMPT'] == '0' else 0)"
CPU = "3"
"""Of a node's four, so that two gangs of two ranks do not fit on two nodes."""


@pytest.fixture
def urgent(tenant: Tenant) -> Iterator[str]:
    """The name of a priority class."""
    name = f"urgent-{uuid.uuid4().hex[:6]}"
    with tenant.plane.client() as admin:
        admin.post(CLASSES, json={"metadata": {"name": name}, "value": 1000}).raise_for_status()
        yield name
        admin.delete(f"{CLASSES}/{name}").raise_for_status()


async def runs(tenant: Tenant, submission: Submission) -> None:
    """Wait until all ranks run."""
    event = await follow(tenant.config, submission.ref, FollowOptions(until="running"))
    assert event.status is Status.RUNNING, event


async def test_preempted_gang_is_submitted_again_and_runs_when_there_is_room(tenant: Tenant, urgent: str) -> None:
    spec = gang_spec(2, code=FIRST_ATTEMPT_IS_ENDLESS, cpu=CPU)
    important = gang_spec(2, code="import time; time.sleep(3000)", cpu=CPU, priority_class=urgent)
    async with GangService.connect(tenant.config) as gangs:
        first = await submit_gang(gangs, spec)
        await runs(tenant, first)
        other = await submit_gang(gangs, important, run="important")
        event = await follow_gang(tenant, first)
        await runs(tenant, other)

        lost = disruption_of(event, allowed=1)
        assert lost is not None, event
        assert (event.reason, lost.number, lost.is_allowed) == ("Preempted", 1, True)

        rule = NextAttemptRule.after(event, max_disruptions=1)
        key = TaskKey("dag", "run", "task", -1)
        second = await gangs.submit(spec, SubmissionRequest(key=key, claim=Claim("somebody"), rule=rule))
        assert (second.attempt, second.disruptions, second.adopted) == (1, 1, False)
        await kill(gangs.client, other.ref, "somebody")
        end = await follow_gang(tenant, second)

    assert end.status is Status.SUCCEEDED, end
    assert tenant.forbidden_requests() == []
