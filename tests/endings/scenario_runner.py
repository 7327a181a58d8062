"""Run a scenario and check its end: each outcome is recorded once, no pod is held, and the verdict is the Job's."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_STOPPED
from airflow_provider_gangjobs.service import GangService
from tests.guarantees.harvest import check_harvest, no_finalizer_left

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
    from tests.endings.gang_under_test import GangUnderTest
    from tests.endings.scenarios import Endings, Scenario

Obj = dict[str, Any]


async def play(gang: GangUnderTest, scenario: Scenario) -> None:
    """Run the scenario until the event of the follower, and check the event and the history."""
    following = asyncio.create_task(gang.follow(deadlines=scenario.deadlines))
    try:
        await scenario.act(gang)
        event = await following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert (event.status, event.reason) == (scenario.status, scenario.code), event
    assert scenario.notes in {None, len(event.notes)}, event.notes
    assert scenario.is_as_expected(outcomes_by_rank(event)), event
    await check(gang, event)


async def check(gang: GangUnderTest, event: GangEvent) -> None:
    """Check on the history what holds in every scenario."""
    name = gang.ref.name
    record = await gang.record()
    uids = record.uids(name)
    assert job_verdict(record.job(name)) in _verdicts_of(event)
    assert len(event.ranks) == len(uids)
    assert event.counts["held"] == 0
    no_finalizer_left(record, name)
    if event.status is not Status.DELETED:
        check_harvest(record, uids, name)
        assert _recorded(record.ledger(name)) == outcomes_by_rank(event)
    if any(_stays(job) for job in record.last(JOBS, gang=name) if job["metadata"]["name"] == name):
        async with GangService.connect(gang.config) as gangs:
            assert {outcome.uid for outcome in await gangs.outcomes(gang.ref)} == uids


def _verdicts_of(event: GangEvent) -> set[Status | None]:
    """Return the verdicts of the Job that agree with the event. A stopped Job fails, or stays suspended."""
    return {Status.FAILED, None} if event.status is Status.TIMEOUT else {event.status, None}


def _stays(job: Obj) -> bool:
    """Return whether the Job and its ledger stay: the Job is not being deleted, and has no time to live of zero."""
    return "deletionTimestamp" not in job["metadata"] and job["spec"].get("ttlSecondsAfterFinished") != 0


def job_verdict(job: Obj) -> Status | None:
    """Return the final condition of the Job as a status; None if the Job has no final condition."""
    true_conditions = {c["type"] for c in job["status"].get("conditions") or () if c["status"] == "True"}
    if "Complete" in true_conditions:
        return Status.SUCCEEDED
    stopped = json.loads(job["metadata"].get("annotations", {}).get(ANNOTATION_STOPPED, "{}"))
    if stopped.get("code") == "MainContainersSucceeded":
        return Status.SUCCEEDED if "Failed" in true_conditions else None
    was_deleted = "deletionTimestamp" in job["metadata"]
    return Status.FAILED if "Failed" in true_conditions and not was_deleted else None


def outcomes_by_rank(event: GangEvent) -> dict[int | None, Endings]:
    """Return the outcomes of the pods of each rank: failures in their order, and then the success."""
    return _by_rank((end.rank, end.outcome) for end in event.ranks)


def _recorded(ledger: dict[str, str]) -> dict[int | None, Endings]:
    """Return the outcomes of each rank by the ledger, in the order in which the pods were created."""
    outcomes = [msgspec.json.decode(text, type=Outcome) for text in ledger.values()]
    return _by_rank((outcome.rank, outcome.outcome) for outcome in sorted(outcomes, key=lambda o: str(o.created)))


def _by_rank(ends: Iterable[tuple[int | None, OutcomeKind]]) -> dict[int | None, Endings]:
    found: defaultdict[int | None, list[OutcomeKind]] = defaultdict(list)
    for rank, ending in ends:
        found[rank].append(ending)
    return {rank: tuple(endings) for rank, endings in found.items()}
