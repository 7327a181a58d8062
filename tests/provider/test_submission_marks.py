"""Deletion, stop and delivery of a submitted gang apply to its Job only, and to no later Job of the name."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.ending.deliver import deliver, mark_delivered
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES, WORKLOADS
from tests.ends import delete_gang, stop_gang

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef

NOW = datetime(2026, 1, 1, tzinfo=UTC)


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
