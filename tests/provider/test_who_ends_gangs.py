"""The table of the package `ending` says who may end which gangs, and what is done with them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from airflow_provider_gangjobs import ending
from airflow_provider_gangjobs.ending.delete import end_live_gangs
from airflow_provider_gangjobs.ending.deliver import deliver, mark_delivered
from airflow_provider_gangjobs.ending.submissions import clean_up_half_submitted
from airflow_provider_gangjobs.ending.sweep import sweep_once
from airflow_provider_gangjobs.gang.state.ownership import TaskEnd
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.gang.view import view_job
from airflow_provider_gangjobs.service import GangService
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.ends import discard, kill, stop_gang
from tests.provider.submission_cluster import SubmissionCluster, running_cluster
from tests.provider.test_sweep import DELETE, GRACE_S, MINUTE_S, PROD, Sweeper
from tests.sandbox.builders import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey

HOUR: Final = timedelta(hours=1)
BEFORE_THE_START: Final = 5


async def end_task(cluster: SubmissionCluster, *, deletes: bool) -> None:
    stopped = None if deletes else stopped_by_user("x")
    await end_live_gangs(cluster.client, PROD, "ti-1", namespace=NAMESPACE, stopped=stopped, on_ended=lambda ref: None)


async def delete_submission(cluster: SubmissionCluster, ref: GangRef, *, job: bool) -> None:
    stored = next(read_job(each) for each in cluster.jobs() if read_job(each).ref == ref)
    cluster.run_controllers_during_sleep()
    await GangService(cluster.client).delete_submission(stored.record.submission_id or "", namespace=NAMESPACE, job=job)


async def sweep(cluster: SubmissionCluster, answer: TaskEnd, *, is_of_others: bool) -> None:
    async def ask(key: TaskKey) -> TaskEnd:
        return answer

    sweeper = Sweeper(cluster, installation="other" if is_of_others else "prod")
    sweeper.sweep.ask = ask
    for after_s in (0.0, GRACE_S, MINUTE_S):
        await sweeper.look(after_s=after_s)


async def tidy(cluster: SubmissionCluster) -> None:
    async def follow(ref: GangRef) -> None:
        pass

    def later() -> Any:
        return cluster.bench.clock.now() + 2 * HOUR

    await clean_up_half_submitted(cluster.client, namespace=NAMESPACE, older_than=HOUR, now=later)
    await sweep_once(cluster.client, NAMESPACE, follow=follow, older_than=timedelta())


WHO: Final[list[Callable[[SubmissionCluster, GangRef, bool], Awaitable[object]]]] = [
    lambda cluster, ref, _: kill(cluster.client, ref, "ti-1"),
    lambda cluster, ref, _: end_task(cluster, deletes=True),
    lambda cluster, ref, _: end_task(cluster, deletes=False),
    lambda cluster, ref, _: stop_gang(cluster.client, ref, reason="x", claim_id="ti-1"),
    lambda cluster, ref, _: discard(cluster.client, ref, "ti-1"),
    lambda cluster, ref, _: deliver(cluster.client, ref, "ti-1"),
    lambda cluster, ref, _: cluster.submit(key=PROD, claim="ti-3", durable=False),
    lambda cluster, ref, _: GangService(cluster.client).stop(ref, reason="x"),
    lambda cluster, ref, _: GangService(cluster.client).delete(ref, deleted_by="x"),
    lambda cluster, ref, _: delete_submission(cluster, ref, job=True),
    lambda cluster, ref, _: delete_submission(cluster, ref, job=False),
    lambda cluster, ref, is_of_others: sweep(cluster, TaskEnd.ENDED, is_of_others=is_of_others),
    lambda cluster, ref, is_of_others: sweep(cluster, TaskEnd.SUCCEEDED, is_of_others=is_of_others),
    lambda cluster, ref, _: tidy(cluster),
]
"""The rows of the table."""


def table() -> tuple[list[str], list[list[str]]]:
    """Return the states of gangs, and for each row who it is about and what is done in each state."""
    lines = [line.strip("| ").split(" | ") for line in (ending.__doc__ or "").splitlines() if line.startswith("| ")]
    return lines[0][1:], lines[1:]


async def gang_in(cluster: SubmissionCluster, state: str) -> GangRef:
    if state == "half-submitted":
        process = CrashingClient(cluster.client, Crash(BEFORE_THE_START, applied=True))
        with suppress(ProcessDied):
            await cluster.submit(key=PROD, policies=DELETE, api=process)
        return read_job(cluster.jobs()[0]).ref
    ref = (await cluster.submit(key=PROD, policies=DELETE, claim="ti-2" if state == "of others" else "ti-1")).ref
    if state == "stopped":
        await stop_gang(cluster.client, ref, reason="before")
    if state in {"succeeded", "delivered"}:
        cluster.finish_job(ref.name)
    if state == "delivered":
        await mark_delivered(cluster.client, ref, "ti-1")
        cluster.bench.clock.advance(1.0)  # the mark of another delivery has another time
    return ref


def marks(cluster: SubmissionCluster, ref: GangRef) -> dict[str, Any]:
    jobs = [job for job in map(read_job, cluster.jobs()) if job.ref == ref and not job.is_being_deleted]
    return {
        "delete": jobs == [],
        "stop": [job.stopped for job in jobs],
        "deliver": [view_job(job).delivered_at for job in jobs],
    }


@pytest.mark.parametrize(("who", "row"), list(zip(WHO, table()[1], strict=True)), ids=[row[0] for row in table()[1]])
async def test_gang_ends_as_the_table_says(who, row):
    for state, expected in zip(table()[0], row[1:], strict=True):
        async with running_cluster() as cluster:
            ref = await gang_in(cluster, state)
            before = marks(cluster, ref)

            await who(cluster, ref, state == "of others")

            after = marks(cluster, ref)
            done = [name for name, mark in after.items() if mark != before[name]]
            assert ("delete" if "delete" in done else ", ".join(done) or "-") == expected, state
