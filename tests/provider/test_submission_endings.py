"""A function that ends a gang judges the Job first, and acts only on the version that it judged."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid
from airflow_provider_gangjobs.ending.delete import end_live_gangs
from airflow_provider_gangjobs.ending.deliver import deliver, mark_delivered
from airflow_provider_gangjobs.ending.submissions import delete_submission
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube import resources
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES, WORKLOADS
from tests.ends import Killed, begin_kill, delete_gang, discard, stop_gang
from tests.provider.submission_cluster import KEY, InterleavingClient
from tests.sandbox.builders import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef


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
        await cluster.client.patch(resources.JOBS, ref.name, ref.namespace, {"metadata": {"labels": {"seen": "yes"}}})

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


# -- Deletion, stop and delivery of a submitted gang apply to its Job only, and to no later Job of the name ----------


async def test_deletion_of_the_job_deletes_all_of_its_objects(cluster):
    submission = await cluster.submit()
    cluster.bench.run()
    assert (await delete_gang(cluster.client, submission.ref)).deleted
    for _ in range(3):
        cluster.bench.run(60)
        cluster.bench.stop_deleted()
        for pod in cluster.bench.pods():
            cluster.bench.release(pod, "gangjobs.airflow/harvest")
    left = [cluster.objects(kind) for kind in (JOBS, PODS, SERVICES, CONFIGMAPS, WORKLOADS, PODGROUPS)]
    assert left == [[]] * 6
    assert not (await delete_gang(cluster.client, submission.ref)).deleted


async def test_deletion_does_not_delete_a_later_job_of_the_name(cluster):
    first = await cluster.submit()
    await delete_gang(cluster.client, first.ref)
    cluster.bench.run(60)
    second = await cluster.submit()
    assert second.ref.name == first.ref.name
    assert not (await delete_gang(cluster.client, first.ref)).deleted
    assert len(cluster.live_jobs()) == 1


async def test_marks_do_not_change_a_later_job_of_the_name(cluster):
    first = await cluster.submit()
    await delete_gang(cluster.client, first.ref)
    cluster.bench.run(60)
    await cluster.submit()
    before = cluster.live_jobs()
    assert await mark_delivered(cluster.client, first.ref, "ti-1") is None
    assert not await stop_gang(cluster.client, first.ref, reason="x")
    assert cluster.live_jobs() == before


@pytest.mark.parametrize("ran_s", [0, 30])
async def test_stopped_gang_fails_and_never_runs_again(cluster, ran_s):
    first = await cluster.submit()
    cluster.bench.run(ran_s)
    assert await stop_gang(cluster.client, first.ref, reason="assembling took too long")
    assert state_of(read_job(cluster.jobs()[0])) is SubmissionState.STOPPED
    second = await cluster.submit()
    assert second.attempt == 1
    for _ in range(3):
        cluster.bench.run(30)
        cluster.bench.stop_deleted()
    assert state_of(read_job(cluster.jobs()[0])) is SubmissionState.FAILED


async def test_marks_on_a_job_that_is_gone_return_false(cluster):
    submission = await cluster.submit()
    await delete_gang(cluster.client, submission.ref)
    cluster.bench.run()
    assert await mark_delivered(cluster.client, submission.ref, "ti-1") is None
    assert not await stop_gang(cluster.client, submission.ref, reason="x")


@pytest.mark.parametrize("fault", [Fault(FaultKind.STATUS, code=500, times=2), Fault(FaultKind.DROP_AFTER)], ids=str)
async def test_deletion_is_retried_while_others_change_the_job(cluster, fault):
    submission = await cluster.submit()
    cluster.faults.add(fault)
    await delete_gang(cluster.client, submission.ref)
    cluster.bench.run()
    assert cluster.jobs() == []


async def succeeded(cluster) -> tuple[GangRef, str]:
    """Submit a gang of the claim "one", let it succeed, and return it with the version of its Job."""
    submission = await cluster.submit(claim="one")
    cluster.finish_job(submission.ref.name)
    (job,) = cluster.jobs()
    return submission.ref, job["metadata"]["resourceVersion"]


async def test_gang_that_is_deleted_after_its_success_needs_no_mark(cluster):
    ref, version = await succeeded(cluster)
    before = Counter(cluster.client.statistics().requests)
    assert await deliver(cluster.client, ref, "one", deletes=True, version=version)
    assert Counter(cluster.client.statistics().requests) - before == {"delete": 1}
    assert cluster.jobs() == []


@pytest.mark.parametrize("code", [403, 409, 503])
async def test_gang_that_cannot_be_deleted_is_marked_as_delivered(cluster, code):
    ref, version = await succeeded(cluster)
    cluster.faults.add(Fault(FaultKind.STATUS, code=code, method="DELETE", times=None))
    with suppress(ClusterError):
        await deliver(cluster.client, ref, "one", deletes=True, version=version)
    (job,) = cluster.jobs()
    assert state_of(read_job(job)) is SubmissionState.DELIVERED
