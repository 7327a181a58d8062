"""A function that ends a gang judges the Job first, and acts only on the version that it judged."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.errors import Conflict, Invalid
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.ending.deliver import deliver, mark_delivered
from airflow_provider_gangjobs.ending.of_task import end_live_gangs
from airflow_provider_gangjobs.ending.submissions import delete_submission
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from gangjobs_sandbox.api import Fault, FaultKind
from tests.ends import Killed, begin_kill, discard, stop_gang
from tests.provider.submission_cluster import KEY, InterleavingClient
from tests.sandbox.builders import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def end_task(api: Any, ref: GangRef, *, deletes: bool) -> bool:
    ended: list[GangRef] = []
    await end_live_gangs(
        api,
        KEY,
        "ti-1",
        namespace=ref.namespace,
        stopped=None if deletes else stopped_by_user("x"),
        on_ended=ended.append,
    )
    return bool(ended)


ENDINGS: dict[str, tuple[str, Callable[[Any, GangRef], Awaitable[object]]]] = {
    "a kill": ("delete jobs", lambda api, ref: begin_kill(api, ref, "ti-1")),
    "a discard": ("delete jobs", lambda api, ref: discard(api, ref, "ti-1")),
    "a stop": ("patch jobs", lambda api, ref: stop_gang(api, ref, reason="x", claim_id="ti-1")),
    "a delivery": ("patch jobs", lambda api, ref: mark_delivered(api, ref, "ti-1")),
    "the deletion after a delivery": (
        "delete jobs",
        lambda api, ref: deliver(api, ref, "ti-1", deletes=True),
    ),
    "the end of a task, deleting": ("delete jobs", lambda api, ref: end_task(api, ref, deletes=True)),
    "the end of a task, stopping": ("patch jobs", lambda api, ref: end_task(api, ref, deletes=False)),
}


@pytest.mark.parametrize(("at", "ending"), ENDINGS.values(), ids=ENDINGS)
async def test_gang_that_is_adopted_meanwhile_is_kept(cluster, at: str, ending: Any):
    ref = (await cluster.submit(claim="ti-1")).ref
    api = InterleavingClient(cluster.client, at, lambda: cluster.adopt(ref, "ti-2"))

    ended = await ending(api, ref)

    assert (ended in (None, False, Killed.LEFT_ALONE), api.happened) == (True, 1)
    assert [job["metadata"]["uid"] for job in cluster.jobs()] == [ref.uid]
    assert cluster.jobs()[0]["spec"]["suspend"] is False


@pytest.mark.parametrize(("at", "ending"), ENDINGS.values(), ids=ENDINGS)
async def test_ending_is_repeated_when_the_job_changes_otherwise(cluster, at: str, ending: Any):
    ref = (await cluster.submit(claim="ti-1")).ref

    async def change() -> None:
        await cluster.client.patch(JOBS, ref.name, ref.namespace, {"metadata": {"labels": {"seen": "yes"}}})

    assert await ending(InterleavingClient(cluster.client, at, change), ref)

    assert [
        job for job in cluster.live_jobs() if "gangjobs.airflow/delivered" not in job["metadata"]["annotations"]
    ] == []


async def test_gang_that_ends_before_the_kill_is_kept(cluster):
    ref = (await cluster.submit(claim="ti-1")).ref

    async def end() -> None:
        cluster.finish_job(ref.name)

    assert await begin_kill(InterleavingClient(cluster.client, "delete jobs", end), ref, "ti-1") is Killed.ENDED

    assert state_of(read_job(cluster.jobs()[0])) is SubmissionState.SUCCEEDED


@pytest.mark.parametrize("kind", [FaultKind.DROP_AFTER, FaultKind.DROP_BEFORE], ids=["applied", "not applied"])
async def test_kill_whose_answer_is_lost_is_known_to_be_done(cluster, kind: FaultKind):
    ref = (await cluster.submit(claim="ti-1")).ref
    cluster.faults.add(Fault(kind, method="DELETE", times=1))

    assert await begin_kill(cluster.client, ref, "ti-1") is Killed.DELETED

    assert cluster.live_jobs() == []


async def test_kill_gives_up_after_repeated_conflicts(cluster):
    ref = (await cluster.submit(claim="ti-1")).ref
    cluster.faults.add(Fault(FaultKind.STATUS, code=409, method="DELETE", times=None))

    with pytest.raises(Conflict):
        await begin_kill(cluster.client, ref, "ti-1")


async def test_empty_claim_is_responsible_for_nothing(cluster):
    ref = (await cluster.submit(claim="")).ref

    assert await begin_kill(cluster.client, ref, "") is Killed.LEFT_ALONE


async def test_mark_that_the_server_finds_invalid_raises(cluster):
    ref = (await cluster.submit(claim="ti-1")).ref
    cluster.faults.add(Fault(FaultKind.STATUS, code=422, method="PATCH", times=1))

    with pytest.raises(Invalid):
        await mark_delivered(cluster.client, ref, "ti-1")


async def test_superseded_gang_that_is_adopted_meanwhile_is_read_again(cluster):
    first = await cluster.submit(claim="ti-1")
    api = InterleavingClient(cluster.client, "delete jobs", lambda: cluster.adopt(first.ref, "ti-2"))

    second = await cluster.submit(claim="ti-3", durable=False, api=api)

    assert (api.happened, second.attempt) == (1, 1)
    cluster.check_one_live_gang(second)


async def test_superseded_gang_that_succeeds_meanwhile_is_kept(cluster):
    first = await cluster.submit(claim="ti-1")

    async def end() -> None:
        cluster.finish_job(first.ref.name)

    await cluster.submit(claim="ti-3", durable=False, api=InterleavingClient(cluster.client, "delete jobs", end))

    assert [state_of(read_job(job)) for job in cluster.jobs()] == [
        SubmissionState.SUCCEEDED,
        SubmissionState.IN_PROGRESS,
    ]


async def test_forgotten_job_that_is_changed_meanwhile_is_judged_again(cluster):
    first = await cluster.submit(claim="ti-1")
    cluster.finish_job(first.ref.name)
    change = partial(mark_delivered, cluster.client, first.ref, "ti-1")
    api = InterleavingClient(cluster.client, "delete jobs", change)

    await delete_submission(api, first.submission_id, namespace=NAMESPACE, job=True, timeout_s=120)

    assert (api.happened, cluster.jobs()) == (1, [])
