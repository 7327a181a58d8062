"""Deletion, halt and delivery of a submitted gang apply to its Job only, and to no later Job of the name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_gangjobs.ending.delete_gang import delete_job
from airflow_provider_gangjobs.ending.halt import halt
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.jobs.claim import mark_delivered
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES, WORKLOADS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_deletion_of_the_job_deletes_all_of_its_objects(cluster):
    submission = await cluster.submit()
    cluster.bench.run()
    assert (await delete_job(cluster.client, submission.ref)).deleted
    for _ in range(3):
        cluster.bench.run(60)
        cluster.bench.stop_deleted()
        for pod in cluster.bench.pods():
            cluster.bench.release(pod, "gangjobs.airflow/harvest")
    left = [cluster.objects(kind) for kind in (JOBS, PODS, SERVICES, CONFIGMAPS, WORKLOADS, PODGROUPS)]
    assert left == [[]] * 6
    assert not (await delete_job(cluster.client, submission.ref)).deleted


async def test_deletion_does_not_delete_a_later_job_of_the_name(cluster):
    first = await cluster.submit()
    await delete_job(cluster.client, first.ref)
    cluster.bench.run(60)
    second = await cluster.submit()
    assert second.ref.name == first.ref.name
    assert not (await delete_job(cluster.client, first.ref)).deleted
    assert len(cluster.live_jobs()) == 1


async def test_marks_do_not_change_a_later_job_of_the_name(cluster):
    first = await cluster.submit()
    await delete_job(cluster.client, first.ref)
    cluster.bench.run(60)
    await cluster.submit()
    before = cluster.live_jobs()
    assert not await mark_delivered(cluster.client, first.ref, at=NOW)
    assert not await halt(cluster.client, first.ref, reason="x")
    assert cluster.live_jobs() == before


@pytest.mark.parametrize("ran_s", [0, 30])
async def test_halted_gang_fails_and_never_runs_again(cluster, ran_s):
    first = await cluster.submit()
    cluster.bench.run(ran_s)
    assert await halt(cluster.client, first.ref, reason="assembling took too long")
    assert state_of(read_job(cluster.jobs()[0])) is SubmissionState.HALTED
    second = await cluster.submit()
    assert second.attempt == 1
    for _ in range(3):
        cluster.bench.run(30)
        cluster.bench.stop_deleted()
    assert state_of(read_job(cluster.jobs()[0])) is SubmissionState.FAILED


async def test_marks_on_a_job_that_is_gone_return_false(cluster):
    submission = await cluster.submit()
    await delete_job(cluster.client, submission.ref)
    cluster.bench.run()
    assert not await mark_delivered(cluster.client, submission.ref, at=NOW)
    assert not await halt(cluster.client, submission.ref, reason="x")


@pytest.mark.parametrize("fault", [Fault(FaultKind.STATUS, code=500, times=2), Fault(FaultKind.DROP_AFTER)], ids=str)
async def test_deletion_is_retried_while_others_change_the_job(cluster, fault):
    submission = await cluster.submit()
    cluster.faults.add(fault)
    await delete_job(cluster.client, submission.ref)
    cluster.bench.run()
    assert cluster.jobs() == []
