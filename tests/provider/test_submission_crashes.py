"""The process of a submission dies before or after any of its requests, twice, or beside another process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.submission.submission import Submission
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import JOBS, PODS
from tests.crashes import Crash, CrashingClient, crash_points, dies, may_die
from tests.examples import examples
from tests.interleaving import interleaved
from tests.provider.role_gangs import LEADER_AND_WORKERS
from tests.provider.submission_cluster import GANG_OF_4, NO_PERMISSION, RELEASES, InterleavingClient, running_cluster
from tests.provider.test_operations import OURS, delete, submit

if TYPE_CHECKING:
    from tests.provider.submission_cluster import SubmissionCluster


# -- The process of a submission dies before or after any of its requests. Then another process submits --------------

PREFERRED = GangSpec(image="trainer:1", workers=4, gang="preferred")


async def all_crashes(release: str, spec: GangSpec, *, after: Crash | None = None) -> list[Crash]:
    """Return every crash of a submission, or of one that completes what another process has left at a crash."""
    async with running_cluster(release) as cluster:
        if after is not None:
            await die(cluster, spec, after, "ti-1")
        process = CrashingClient(cluster.client)
        await cluster.submit(spec, api=process, claim="ti-2")
        return crash_points(process.requests)


async def die(cluster: SubmissionCluster, spec: GangSpec, crash: Crash, claim: str) -> None:
    with dies(process := CrashingClient(cluster.client, crash)):
        await cluster.submit(spec, api=process, claim=claim)


async def crash_once(cluster: SubmissionCluster, spec: GangSpec, crash: Crash, claim: str) -> None:
    """Submit in a process that may die at the crash, and let an hour pass if the process has died."""
    process = CrashingClient(cluster.client, crash)
    with may_die(process):
        await cluster.submit(spec, api=process, claim=claim)
    if process.has_died:
        cluster.bench.run(3600)


CASES = [
    pytest.param("1.36", GANG_OF_4, id="1.36", marks=pytest.mark.slow),
    pytest.param("1.37", GANG_OF_4, id="1.37"),
    pytest.param("1.37", LEADER_AND_WORKERS, id="roles"),
    pytest.param("none", PREFERRED, id="none", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("release", "spec"), CASES)
async def test_a_crash_leaves_one_gang_to_the_next_try(release, spec):
    for crash in await all_crashes(release, spec):
        async with running_cluster(release) as cluster:
            await die(cluster, spec, crash, "ti-1")
            cluster.bench.run(3600)
            assert len(cluster.live_jobs()) <= 1, crash
            submission = await cluster.submit(spec, claim="ti-last")
            cluster.check_one_live_gang(submission)
            assert submission.attempt == 0, crash


@pytest.mark.parametrize(
    ("spec", "first"),
    [(GANG_OF_4, Crash(1, applied=True)), (LEADER_AND_WORKERS, Crash(3, applied=True))],
    ids=["one Job", "roles"],
)
async def test_a_crash_while_completing_a_half_gang_leaves_one(spec, first):
    for crash in await all_crashes("1.37", spec, after=first):
        async with running_cluster("1.37") as cluster:
            await die(cluster, spec, first, "ti-1")
            await die(cluster, spec, crash, "ti-2")
            submission = await cluster.submit(spec, claim="ti-3")
            cluster.check_one_live_gang(submission)
            assert submission.attempt == 0, crash


CRASHES = st.lists(st.builds(Crash, st.integers(0, 8), st.booleans()), min_size=2, max_size=4)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(crashes=CRASHES, release=st.sampled_from(RELEASES))
async def test_any_series_of_crashes_leaves_one_gang(crashes, release):
    async with running_cluster(release) as cluster:
        for number, crash in enumerate(crashes):
            await crash_once(cluster, GANG_OF_4, crash, f"ti-{number}")
        submission = await cluster.submit(claim="ti-last")
        cluster.check_one_live_gang(submission)


FAULTS = {
    "409": Fault(FaultKind.STATUS, code=409),
    "429": Fault(FaultKind.STATUS, code=429, retry_after_s=7),
    "500": Fault(FaultKind.STATUS, code=500),
    "500 although applied": Fault(FaultKind.STATUS_AFTER, code=500),
    "503": Fault(FaultKind.STATUS, code=503),
    "dropped": Fault(FaultKind.DROP_BEFORE),
    "dropped although applied": Fault(FaultKind.DROP_AFTER),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_one_fault_at_any_write_does_not_change_the_result(fault, method):
    for skip in count():
        async with running_cluster() as cluster:
            cluster.faults.add(replace(fault, method=method, skip=skip))
            submission = await cluster.submit()
            cluster.check_one_live_gang(submission)
            if not cluster.faults.history:
                assert skip == {"POST": 5, "PATCH": 1}[method]
                return
            assert (submission.attempt, submission.notes) == (0, ())


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_server_that_stays_broken_is_an_error_and_the_submission_can_be_completed(cluster, method):
    cluster.faults.add(Fault(FaultKind.STATUS, code=500, method=method, skip=2 * (method == "POST"), times=None))
    with pytest.raises(SubmissionFailed, match="500") as caught:
        await cluster.submit()
    assert caught.value.retryable
    cluster.faults.remove()
    submission = await cluster.submit(claim="ti-2")
    assert submission.adopted
    cluster.check_one_live_gang(submission)


REFUSED_CREATIONS = {
    "the group": (GANG_OF_4, "podgroups", 0, "create PodGroup"),
    "the Job": (GANG_OF_4, "jobs$", 0, "create Job"),
    "the group of roles": (LEADER_AND_WORKERS, "podgroups", 0, "create PodGroup"),
    "the Job of the second role": (LEADER_AND_WORKERS, "jobs$", 1, "create Job"),
}


@pytest.mark.parametrize(("spec", "path", "skip", "step"), REFUSED_CREATIONS.values(), ids=REFUSED_CREATIONS)
async def test_refused_submission_is_an_error_and_leaves_nothing(cluster, spec, path, skip, step):
    fault = Fault(FaultKind.STATUS, code=403, method="POST", path=path, skip=skip, message=NO_PERMISSION, times=None)
    cluster.faults.add(fault)
    with pytest.raises(SubmissionFailed, match="see the documented Role") as caught:
        await cluster.submit(spec)
    assert (caught.value.step.startswith(step), caught.value.retryable) == (True, False)
    cluster.bench.run(30)
    assert cluster.objects(JOBS) == []


async def test_a_workload_that_is_not_seen_yet_is_waited_for():
    async with running_cluster("1.36") as cluster:
        refusal = Fault(FaultKind.STATUS, code=403, method="POST", path="podgroups", message="workload not found")
        cluster.faults.add(refusal)
        cluster.check_one_live_gang(await cluster.submit())


async def test_list_that_is_unreachable_is_an_error(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=500, method="GET", times=None))
    with pytest.raises(SubmissionFailed, match="find the task's Jobs") as caught:
        await cluster.submit()
    assert caught.value.retryable


# -- Two faults, at any requests of a submission or of its deletion, leave one gang, or none after a deletion --------

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
PAIRS_OF_CRASHES = st.none() | st.builds(Crash, st.integers(0, 8), st.booleans())
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
@given(faults=TWO, crash=PAIRS_OF_CRASHES, by_id=st.booleans(), release=st.sampled_from(RELEASES))
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
@given(faults=TWO, crash=PAIRS_OF_CRASHES, job=st.booleans(), release=st.sampled_from(RELEASES))
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


# -- Two processes submit the same task at once; every order of their requests ends in one gang ----------------------

OTHER = GangSpec(image="trainer:2", workers=4)


TURNS = st.lists(st.integers(0, 1), max_size=24)
HARD = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=examples(30), **HARD)
@given(turns=TURNS, release=st.sampled_from(RELEASES))
async def test_two_submitters_end_in_one_gang(turns, release):
    async with running_cluster(release) as cluster:
        first, second = await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(claim="ti-1", api=api),
            lambda api: cluster.submit(claim="ti-2", api=api),
        )
        assert isinstance(first, Submission), first
        assert isinstance(second, Submission), second
        assert first.ref == second.ref
        cluster.check_one_live_gang(second)


@settings(max_examples=examples(20), **HARD)
@given(turns=TURNS)
async def test_two_tries_that_replace_each_other_leave_one_gang_to_the_next_try(turns):
    async with running_cluster() as cluster:
        await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(claim="ti-1", api=api, durable=False),
            lambda api: cluster.submit(claim="ti-2", api=api, durable=False),
        )
        submission = await cluster.submit(claim="ti-3")
        cluster.check_one_live_gang(submission)


@settings(max_examples=examples(20), **HARD)
@given(turns=TURNS)
async def test_two_tries_with_other_parameters_leave_one_gang(turns):
    async with running_cluster() as cluster:
        ends = await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(GANG_OF_4, claim="ti-1", api=api),
            lambda api: cluster.submit(OTHER, claim="ti-2", api=api),
        )
        assert any(isinstance(end, Submission) for end in ends)
        cluster.bench.run()
        assert len(cluster.live_jobs()) == 1


async def test_many_submitters_at_once_end_in_one_gang(cluster):
    submissions = await asyncio.gather(*(cluster.submit(claim=f"ti-{n}") for n in range(8)))
    assert len({submission.ref for submission in submissions}) == 1
    assert [submission.adopted for submission in submissions].count(False) == 1
    cluster.check_one_live_gang(submissions[0])


async def test_try_that_finds_its_job_created_meanwhile_is_responsible_for_it(cluster):
    api = InterleavingClient(cluster.client, "create jobs", lambda: cluster.submit(claim="ti-1"))
    submission = await cluster.submit(claim="ti-2", api=api)
    cluster.check_one_live_gang(submission)
    (job,) = cluster.live_jobs()
    assert read_job(job).claim.id == "ti-2"
