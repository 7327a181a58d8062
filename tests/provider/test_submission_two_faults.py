"""Two faults, at any requests of a submission or of its deletion, leave one gang, or none after a deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import SubmissionFailed
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import JOBS, PODS
from tests.crashes import Crash, CrashingClient, crash_points, dies, may_die
from tests.examples import examples
from tests.provider.submission_cluster import RELEASES, running_cluster
from tests.provider.test_operations import OURS, delete, submit

if TYPE_CHECKING:
    from tests.provider.submission_cluster import SubmissionCluster

WAYS = (
    *(Fault(FaultKind.STATUS, code=code) for code in (409, 429, 500, 503)),
    Fault(FaultKind.STATUS, code=429, retry_after_s=30),
    *(Fault(FaultKind.STATUS_AFTER, code=code) for code in (500, 503, 504)),
    Fault(FaultKind.DROP_BEFORE),
    Fault(FaultKind.DROP_AFTER),
)
"""Only writes get 409, because an API server answers no read with it."""
WRITES = st.builds(
    lambda way, method, skip: replace(way, method=method, skip=skip),
    st.sampled_from(WAYS),
    st.sampled_from(["POST", "PATCH", "DELETE"]),
    st.integers(0, 4),
)
READS = st.builds(
    lambda way, skip: replace(way, method="GET", skip=skip),
    st.sampled_from([way for way in WAYS if way.code != 409]),
    st.integers(0, 2),
)
TWO = st.tuples(WRITES | READS, WRITES | READS)
CRASHES = st.none() | st.builds(Crash, st.integers(0, 8), st.booleans())
MANY = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


async def submit_in_trouble(cluster: SubmissionCluster, crash: Crash | None, *, by_id: bool) -> None:
    """Submit in a process that may die, and that may give up only if another try can succeed."""
    process = CrashingClient(cluster.client, crash)
    with may_die(process):
        try:
            await (submit(cluster, api=process) if by_id else cluster.submit(api=process))
        except SubmissionFailed as failed:
            if not failed.retryable:
                raise


@pytest.mark.slow
@MANY
@given(faults=TWO, crash=CRASHES, by_id=st.booleans(), release=st.sampled_from(RELEASES))
async def test_two_faults_and_a_crash_leave_one_gang(faults, crash, by_id, release):
    async with running_cluster(release) as cluster:
        for fault in faults:
            cluster.faults.add(fault)
        await submit_in_trouble(cluster, crash, by_id=by_id)
        assert len(cluster.live_jobs()) <= 1
        cluster.faults.remove()
        cluster.check_one_live_gang(await (submit(cluster) if by_id else cluster.submit()))


@pytest.mark.slow
@MANY
@given(faults=TWO, crash=CRASHES, job=st.booleans(), release=st.sampled_from(RELEASES))
async def test_two_faults_and_a_crash_leave_nothing_of_a_deleted_gang(faults, crash, job, release):
    async with running_cluster(release) as cluster:
        await submit(cluster)
        cluster.bench.run()
        for fault in faults:
            cluster.faults.add(fault)
        process = CrashingClient(cluster.client, crash)
        with may_die(process):
            try:
                await delete(cluster, api=process, job=job)
            except SubmissionFailed as failed:
                assert failed.retryable  # noqa: PT017 - it need not fail
        cluster.faults.remove()
        await delete(cluster, job=job)
        cluster.bench.run(60)
        assert [cluster.objects(resource) for resource in (PODS, *OURS)] == [[]] * 5
        assert len(cluster.objects(JOBS)) == (not job)


@pytest.mark.parametrize("job", [False, True])
async def test_deletion_that_crashes_at_any_request_is_completed_by_the_next_one(job):
    async with running_cluster() as cluster:
        await submit(cluster)
        process = CrashingClient(cluster.client)
        await delete(cluster, api=process, job=job)
        points = crash_points(process.requests)
    for crash in points:
        async with running_cluster() as cluster:
            await submit(cluster)
            with dies(process := CrashingClient(cluster.client, crash)):
                await delete(cluster, api=process, job=job)
            await delete(cluster, job=job)
            cluster.bench.run(60)
            assert [cluster.objects(resource) for resource in (PODS, *OURS)] == [[]] * 5, crash
