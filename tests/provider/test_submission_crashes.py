"""The process of a submission dies before or after any of its requests. Then another process submits."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from gangjobs_sandbox.api import Fault, FaultKind
from tests.crashes import Crash, CrashingClient, ProcessDied, crash_points, dies, may_die
from tests.examples import examples
from tests.provider.submission_cluster import GANG_OF_4, NO_PERMISSION, RELEASES, running_cluster

if TYPE_CHECKING:
    from tests.provider.submission_cluster import SubmissionCluster

PREFERRED = GangSpec(image="trainer:1", workers=4, gang="preferred")


async def all_crashes(release: str, spec: GangSpec, *, retries: bool = False) -> list[Crash]:
    """Return every crash of a submission, from the requests of a submission that does not crash."""
    async with running_cluster(release) as cluster:
        if retries:
            await half_submit(cluster, spec)
        process = CrashingClient(cluster.client)
        await cluster.submit(spec, api=process, claim="ti-2")
        return crash_points(process.requests)


async def half_submit(cluster: SubmissionCluster, spec: GangSpec) -> None:
    with pytest.raises(ProcessDied):
        await cluster.submit(spec, api=CrashingClient(cluster.client, Crash(1, applied=True)), claim="ti-1")


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
    pytest.param("none", PREFERRED, id="none", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("release", "spec"), CASES)
async def test_a_crash_leaves_one_gang_to_the_next_try(release, spec):
    for crash in await all_crashes(release, spec):
        async with running_cluster(release) as cluster:
            with dies(process := CrashingClient(cluster.client, crash)):
                await cluster.submit(spec, api=process, claim="ti-1")
            cluster.bench.run(3600)
            assert len(cluster.live_jobs()) <= 1, crash
            submission = await cluster.submit(spec, claim="ti-last")
            cluster.check_one_live_gang(submission)


async def test_a_crash_while_completing_a_half_gang_leaves_one():
    for crash in await all_crashes("1.37", GANG_OF_4, retries=True):
        async with running_cluster("1.37") as cluster:
            await half_submit(cluster, GANG_OF_4)
            with pytest.raises(ProcessDied):
                await cluster.submit(api=CrashingClient(cluster.client, crash), claim="ti-2")
            submission = await cluster.submit(claim="ti-3")
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


@pytest.mark.parametrize(("path", "step"), [("podgroups", "create PodGroup"), ("jobs$", "create Job")])
async def test_refused_submission_is_an_error_and_leaves_nothing(cluster, path, step):
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="POST", path=path, message=NO_PERMISSION, times=None))
    with pytest.raises(SubmissionFailed, match="see the documented Role") as caught:
        await cluster.submit()
    assert (caught.value.step, caught.value.retryable) == (step, False)
    assert cluster.jobs() == []


async def test_role_that_does_not_exist_is_a_missing_right(cluster):
    """The message of the API server has the words "not found", as the one of a Workload that is not seen yet."""
    cause = (
        'User "system:serviceaccount:team:worker" cannot create resource "podgroups" in API group "x" in the namespace'
    )
    message = f'podgroups.x is forbidden: {cause} "team": RBAC: role.rbac.authorization.k8s.io "gangs" not found'
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="POST", path="podgroups", message=message, times=None))
    with pytest.raises(SubmissionFailed, match="see the documented Role") as caught:
        await cluster.submit()
    assert (caught.value.step, caught.value.retryable) == ("create PodGroup", False)


async def test_a_quota_may_be_freed_again(cluster):
    refusal = Fault(FaultKind.STATUS, code=403, method="POST", path="services", message="exceeded quota: team")
    cluster.faults.add(refusal)
    with pytest.raises(SubmissionFailed, match="exceeded quota") as caught:
        await cluster.submit()
    assert caught.value.retryable


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
