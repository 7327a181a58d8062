"""claim-is-linear: two operations on one gang, in every order of their requests.

The answers of the operations, and the Job that they leave, are those of an order in which one happens after the other.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.ending.deliver import mark_delivered
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from gangjobs_sandbox.resources import JOBS
from tests.ends import Killed, begin_kill, stop_gang
from tests.guarantees.claims import ClaimedGang, Stage, find_order
from tests.guarantees.history import Answer, Kind, Operation
from tests.interleaving import Ended, all_orders, interleave
from tests.provider.submission_cluster import SubmissionCluster, running_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from airflow_provider_gangjobs.gang.identity import GangRef

STAGES = {
    SubmissionState.IN_PROGRESS: Stage.LIVE,
    SubmissionState.SUCCEEDED: Stage.SUCCEEDED,
    SubmissionState.STOPPED: Stage.STOPPED,
    SubmissionState.DELIVERED: Stage.DELIVERED,
    SubmissionState.DELETING: Stage.GONE,
}
FORMER, NEXT = "try-1", "try-2"


@dataclass(frozen=True)
class Caller:
    """An operation of a task instance."""

    kind: Kind
    claim: str

    def __str__(self) -> str:
        return f"{self.kind} by {self.claim}"

    async def call(self, cluster: SubmissionCluster, ref: GangRef, api: Any) -> Answer:
        """Call the operation, and return what the caller is told."""
        match self.kind:
            case Kind.ADOPT:
                submission = await cluster.submit(claim=self.claim, api=api)
                return Answer.DONE if submission.ref == ref else Answer.LEFT
            case Kind.KILL:
                return _KILLED[await begin_kill(api, ref, self.claim)]
            case Kind.STOP:
                done = await stop_gang(api, ref, reason="a test", claim_id=self.claim)
            case _:
                done = await mark_delivered(api, ref, self.claim) is not None
        return Answer.DONE if done else Answer.LEFT

    def operation(self, ended: Ended, ref: GangRef) -> Operation:
        """Return the call as an operation that began with its first request, and returned with its last one."""
        return Operation(ended.turns[0], ended.turns[-1] + 0.5, ref.uid, self.kind, self.claim, ended.result)


_KILLED = {Killed.DELETED: Answer.DONE, Killed.ENDED: Answer.ENDED, Killed.LEFT_ALONE: Answer.LEFT}


@asynccontextmanager
async def gang_of_former_try(stage: Stage) -> AsyncIterator[tuple[SubmissionCluster, GangRef]]:
    async with running_cluster() as cluster:
        ref = (await cluster.submit(claim=FORMER)).ref
        if stage is Stage.SUCCEEDED:
            cluster.finish_job(ref.name)
        yield cluster, ref


def gang_in(cluster: SubmissionCluster, ref: GangRef) -> ClaimedGang | None:
    """Return the gang as the server has it; None if it is gone."""
    job = next((job for job in cluster.objects(JOBS) if job["metadata"]["uid"] == ref.uid), None)
    if job is None:
        return None
    return ClaimedGang(read_job(job).claim.id, STAGES[state_of(read_job(job))])


ADOPT = Caller(Kind.ADOPT, NEXT)
PAIRS = [
    (Caller(Kind.KILL, FORMER), ADOPT),
    (Caller(Kind.STOP, FORMER), ADOPT),
    (Caller(Kind.DELIVER, FORMER), ADOPT),
    (Caller(Kind.KILL, FORMER), Caller(Kind.STOP, FORMER)),
    (Caller(Kind.KILL, FORMER), Caller(Kind.DELIVER, FORMER)),
    (Caller(Kind.STOP, FORMER), Caller(Kind.DELIVER, FORMER)),
    (Caller(Kind.ADOPT, "try-3"), ADOPT),
]


def cases() -> Iterator[Any]:
    """Yield each pair at each stage. The pair with hundreds of orders is slow."""
    for first, second in PAIRS:
        for stage in (Stage.LIVE, Stage.SUCCEEDED):
            is_slow = (first.kind, second, stage) == (Kind.STOP, ADOPT, Stage.LIVE)
            name = f"{first} against {second}, {stage}"
            yield pytest.param((first, second), stage, id=name, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize(("callers", "stage"), list(cases()))
async def test_operations_on_one_claim_are_linear(callers: tuple[Caller, Caller], stage: Stage) -> None:
    orders = 0
    for order in all_orders():
        async with gang_of_former_try(stage) as (cluster, ref):
            processes = [lambda api, one=one: one.call(cluster, ref, api) for one in callers]
            ends = await interleave(cluster.client, order, *processes)
            operations = [one.operation(end, ref) for one, end in zip(callers, ends, strict=True)]

            left = gang_in(cluster, ref)
            order_of_effects = find_order(
                operations,
                first=ClaimedGang(FORMER, stage),
                leaves=lambda gang, left=left: gang.stage is Stage.GONE if left is None else gang == left,
            )
            assert order_of_effects is not None, (order.choices, operations, left)
        orders += 1
    assert orders > 1, "the operations do not interleave"
