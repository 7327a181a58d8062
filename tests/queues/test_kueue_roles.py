"""Gangs with roles in queues of the real Kueue: one JobSet of the real controller, which Kueue admits as a whole."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from airflow_provider_gangjobs.exceptions import GangUnsupported
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import JOB_SETS, JOBS
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG_ROLE, LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.cluster.role_gangs import SLEEP, leader_and_workers
from tests.ends import kill
from tests.queues.following import following, pods_of, until, waiting_behind
from tests.queues.test_kueue_topology import HOSTNAME, create_topology_queue
from tests.replies import accepted
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant
    from tests.queues.following import Following
    from tests.queues.kueue.manager import Kueue

pytestmark = pytest.mark.clusters("job_set_kueue")
QUEUE: Final = "team"
PREFERRED: Final = {"queue_name": QUEUE, "gang": "preferred"}
HOLDER: Final = gang_spec(2, code=SLEEP, **PREFERRED)
"""Holds so much of the quota that a gang with roles does not fit beside it."""
ENDLESS: Final = leader_and_workers(leader=SLEEP, worker=SLEEP, **PREFERRED, termination_grace_s=1)
FAILS: Final = "import sys, time; time.sleep(2); sys.exit(3)"


def stored(tenant: Tenant, path: str) -> dict[str, Any]:
    with tenant.plane.client() as admin:
        return accepted(admin.get(path.format(f"namespaces/{tenant.namespace}")))


def main_job_of(tenant: Tenant, submission: Submission) -> dict[str, Any]:
    return stored(tenant, f"/apis/batch/v1/{{}}/jobs/{submission.ref.name}")


def end_of(tenant: Tenant, submission: Submission) -> list[str]:
    """The final conditions of the main Job."""
    conditions = main_job_of(tenant, submission)["status"].get("conditions", ())
    return [one["type"] for one in conditions if one["type"] in {"Complete", "Failed"}]


def job_sets_of(tenant: Tenant) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stored(tenant, "/apis/jobset.x-k8s.io/v1alpha2/{}/jobsets")["items"]
    return found


def uids_of(tenant: Tenant) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods_of(tenant)}


def workload_of(kueue: Kueue, tenant: Tenant) -> dict[str, Any] | None:
    (job_set,) = job_sets_of(tenant)
    return kueue.workload_of(tenant.namespace, job_set["metadata"]["uid"])


def delete(tenant: Tenant, path: str) -> None:
    """Delete an object in the background, as a person."""
    with tenant.plane.client() as admin:
        url = path.format(f"namespaces/{tenant.namespace}")
        accepted(admin.delete(f"{url}?propagationPolicy=Background"))


@asynccontextmanager
async def running_gang(tenant: Tenant, gangs: GangService) -> AsyncIterator[tuple[Submission, Following]]:
    """Follow a gang that runs for ever."""
    submission = await submit_gang(gangs, ENDLESS)
    async with following(tenant, submission) as gang:
        await gang.line("running: 3/3")
        yield submission, gang


async def test_roles_run_as_one_job_set_where_the_queue_keeps_them_together(kueue: Kueue, tenant: Tenant) -> None:
    create_topology_queue(kueue, tenant.namespace, HOSTNAME)
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(queue_name=QUEUE, ttl_after_finished_s=600))
        async with following(tenant, submission) as gang:
            event = await gang.event()
        outcomes = await gangs.outcomes(submission.ref)
    assert (submission.decision, submission.is_suspended, submission.queue) == ("gang:kueue", True, QUEUE)
    assert event.status is Status.SUCCEEDED, event
    assert [(outcome.role, outcome.message) for outcome in outcomes] == [
        ("leader", "[1, 2]"),
        ("worker", "[0]"),
        ("worker", "[0]"),
    ]
    await until(lambda: end_of(tenant, submission) == ["Complete"])
    assert main_job_of(tenant, submission)["spec"]["ttlSecondsAfterFinished"] == 600
    assert tenant.forbidden_requests() == []


async def test_time_to_live_of_the_record_deletes_everything(tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(**PREFERRED, ttl_after_finished_s=1))
        async with following(tenant, submission) as gang:
            assert (await gang.event()).status is Status.SUCCEEDED
        await nothing_is_left(gangs, tenant)


async def nothing_is_left(gangs: GangService, tenant: Tenant) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        for resource in (JOBS, JOB_SETS):
            while await gangs.client.list(resource, tenant.namespace):  # noqa: ASYNC110 - others delete them
                await asyncio.sleep(0.1)
    await until(lambda: pods_of(tenant) == [])


@pytest.mark.parametrize("role", ["leader", "worker"])
async def test_role_that_fails_ends_the_gang_and_no_outcome_is_lost(
    kueue: Kueue, tenant: Tenant, queue: str, role: str
) -> None:
    programs = {"leader": SLEEP, "worker": SLEEP, role: FAILS}
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(**programs, **PREFERRED, termination_grace_s=1))
        async with following(tenant, submission) as gang:
            event = await gang.event()
        outcomes = await gangs.outcomes(submission.ref)
    assert event.status is Status.FAILED
    assert f"of role {role} exited with code 3" in event.message
    assert sorted((outcome.role, outcome.rank) for outcome in outcomes) == [("leader", 0), ("worker", 1), ("worker", 2)]
    assert 3 in {outcome.exit_code for outcome in outcomes if outcome.role == role}
    await until(lambda: end_of(tenant, submission) == ["Failed"])
    await until(lambda: kueue.used_cpu(queue) == "0")
    assert tenant.forbidden_requests() == []


async def test_gang_waits_for_the_quota_of_all_roles(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    async with (
        GangService.connect(tenant.config) as gangs,
        waiting_behind(tenant, gangs, HOLDER, leader_and_workers(**PREFERRED)) as waiting,
    ):
        await waiting.gang.line(". Position 1 in the ClusterQueue")
        assert len(pods_of(tenant)) == 2
        await gangs.delete(waiting.before.ref)
        assert (await waiting.gang.event()).status is Status.SUCCEEDED
    assert tenant.forbidden_requests() == []


async def test_roles_that_fit_the_sum_and_not_the_nodes_get_no_pod(kueue: Kueue, tenant: Tenant) -> None:
    create_topology_queue(kueue, tenant.namespace, HOSTNAME)
    async with GangService.connect(tenant.config) as gangs:
        spec = leader_and_workers(leader=SLEEP, worker=SLEEP, cpu="2500m", queue_name=QUEUE)
        submission = await submit_gang(gangs, spec)
        async with following(tenant, submission, Deadlines(queue_s=5)) as gang:
            event = await gang.event()
    assert (event.status, event.phase) == (Status.TIMEOUT, "queued")
    assert "topology" in event.message
    await until(lambda: (job_sets_of(tenant), pods_of(tenant)) == ([], []))
    await until(lambda: end_of(tenant, submission) == ["Failed"])
    assert tenant.forbidden_requests() == []


async def test_gang_that_is_stopped_in_its_queue_never_runs(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        async with waiting_behind(tenant, gangs, HOLDER, leader_and_workers(**PREFERRED)) as waiting:
            await gangs.stop(waiting.submission.ref, reason="a person said so")
            event = await waiting.gang.event()
        await gangs.delete(waiting.before.ref)
        third = await submit_gang(gangs, gang_spec(**PREFERRED), "third")
        async with following(tenant, third) as other:
            assert (await other.event()).status is Status.SUCCEEDED
    assert (event.status, event.reason) == (Status.FAILED, "Stopped")
    await until(lambda: end_of(tenant, waiting.submission) == ["Failed"])
    assert job_sets_of(tenant) == []
    assert {pod["metadata"]["labels"]["job-name"] for pod in pods_of(tenant)} == {third.ref.name}


async def test_gang_that_is_stopped_while_it_runs_ends_and_frees_its_quota(
    kueue: Kueue, tenant: Tenant, queue: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        async with running_gang(tenant, gangs) as (submission, gang):
            await gangs.stop(submission.ref, reason="a person said so")
            event = await gang.event()
        assert len(await gangs.outcomes(submission.ref)) == 3
    assert (event.status, event.reason) == (Status.FAILED, "Stopped")
    await until(lambda: kueue.used_cpu(queue) == "0")
    await until(lambda: end_of(tenant, submission) == ["Failed"])


async def test_run_timeout_ends_all_roles(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, ENDLESS)
        async with following(tenant, submission, Deadlines(run_s=3)) as gang:
            event = await gang.event()
        assert len(await gangs.outcomes(submission.ref)) == 3
    assert (event.status, event.phase) == (Status.TIMEOUT, "running"), event
    await until(lambda: kueue.used_cpu(queue) == "0")


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "queued"])
async def test_kill_deletes_the_gang_and_everything_that_it_owns(
    kueue: Kueue, tenant: Tenant, queue: str, is_running: bool
) -> None:
    cpu = "1" if is_running else "2"
    spec = leader_and_workers(leader=SLEEP, worker=SLEEP, cpu=cpu, **PREFERRED, termination_grace_s=1)
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, spec)
        await until(lambda: workload_of(kueue, tenant) is not None)
        await until(lambda: len(pods_of(tenant)) == (3 if is_running else 0))
        assert await kill(gangs.client, submission.ref, "somebody") == "deleted"
        await nothing_is_left(gangs, tenant)
    await until(lambda: kueue.used_cpu(queue) == "0")
    assert tenant.forbidden_requests() == []


async def test_preempted_gang_runs_again_and_is_not_timed_out(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    for name, value in {"roles-low": 1, "roles-high": 100}.items():
        if not kueue.exists("workloadpriorityclasses", name):
            kueue.create("workloadpriorityclasses", {"metadata": {"name": name}, "value": value})
    low_spec = leader_and_workers(
        leader=SLEEP, worker=SLEEP, **PREFERRED, queue_priority="roles-low", termination_grace_s=1
    )
    async with GangService.connect(tenant.config) as gangs:
        low = await submit_gang(gangs, low_spec, "low")
        async with following(tenant, low, Deadlines(queue_s=60)) as gang:
            await gang.line("running: 3/3")
            before = uids_of(tenant)
            high = await submit_gang(
                gangs, gang_spec(code="import time; time.sleep(1)", **PREFERRED, queue_priority="roles-high"), "high"
            )
            async with following(tenant, high) as preempting:
                assert (await preempting.event()).status is Status.SUCCEEDED
            lines = len(gang.lines)
            await until(lambda: any(line.startswith("running: 3/3") for line in gang.lines[lines:]))
            assert not before & {
                pod["metadata"]["uid"] for pod in pods_of(tenant) if pod["status"].get("phase") == "Running"
            }
            await kill(gangs.client, low.ref, "somebody")
    assert any("queued" in line or "Preempted" in line for line in gang.lines), gang.lines


async def test_job_of_a_role_that_somebody_deletes_fails_the_gang(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    """The JobSet controller creates the Job again, which the provider does not take for the Job of the gang."""
    async with GangService.connect(tenant.config) as gangs, running_gang(tenant, gangs) as (submission, gang):
        delete(tenant, f"/apis/batch/v1/{{}}/jobs/{submission.ref.name}-leader-0")
        event = await gang.event()
    assert (event.status, event.reason) == (Status.FAILED, "JobOfRoleDeleted"), event
    await until(lambda: (job_sets_of(tenant), pods_of(tenant)) == ([], []))
    await until(lambda: kueue.used_cpu(queue) == "0")


async def test_job_set_that_somebody_deletes_fails_the_gang(tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        async with running_gang(tenant, gangs) as (submission, gang):
            delete(tenant, f"/apis/jobset.x-k8s.io/v1alpha2/{{}}/jobsets/{submission.ref.name}")
            event = await gang.event()
        assert len(await gangs.outcomes(submission.ref)) == 3
    assert (event.status, event.reason) == (Status.FAILED, "JobOfRoleDeleted"), event


async def test_next_try_adopts_the_gang_that_waits_and_the_one_that_has_succeeded(tenant: Tenant, queue: str) -> None:
    spec = leader_and_workers(**PREFERRED, files={"a.txt": "text"}, execution_timeout_s=100)
    key = TaskKey("dag", "run", "task", -1)
    async with GangService.connect(tenant.config) as gangs:
        first = await gangs.submit(spec, key=key, claim="first")
        assert await limits_s(gangs, tenant) == {"": None, "leader": 700, "worker": 700}
        second = await gangs.submit(spec, key=key, claim="second")
        assert await limits_s(gangs, tenant) == {"": None, "leader": 1400, "worker": 1400}
        assert (second.ref, second.adopted) == (first.ref, True)
        assert read_job(main_job_of(tenant, first)).claim.id == "second"
        assert await kill(gangs.client, first.ref, "first") == "left alone"
        async with following(tenant, second) as gang:
            assert (await gang.event()).status is Status.SUCCEEDED
        before = uids_of(tenant)
        third = await gangs.submit(spec, key=key, claim="third")
        assert (third.ref, third.state) == (first.ref, "succeeded")
        assert uids_of(tenant) == before
    assert tenant.forbidden_requests() == []


async def limits_s(gangs: GangService, tenant: Tenant) -> dict[str, int | None]:
    """The time limits of the Jobs by role, and of the main Job."""
    jobs = await gangs.client.list(JOBS, tenant.namespace)
    return {
        job["metadata"]["labels"].get(LABEL_GANG_ROLE, ""): job["spec"].get("activeDeadlineSeconds") for job in jobs
    }


async def test_queue_that_counts_a_quota_only_is_refused_for_a_required_gang(tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        with pytest.raises(GangUnsupported, match=r"one JobSet, which only Kueue places; .* has no Topology"):
            await submit_gang(gangs, leader_and_workers(queue_name=QUEUE))
        assert await gangs.client.list(JOBS, tenant.namespace) == []
        assert await gangs.client.list(JOB_SETS, tenant.namespace) == []


async def test_label_of_the_queue_is_on_the_job_set_only(tenant: Tenant, queue: str) -> None:
    spec = leader_and_workers(leader=SLEEP, worker=SLEEP, labels={LABEL_KUEUE_QUEUE: QUEUE}, gang="preferred")
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, spec)
        await until(lambda: len(pods_of(tenant)) == 3)
        (job_set,) = job_sets_of(tenant)
        assert job_set["metadata"]["labels"][LABEL_KUEUE_QUEUE] == QUEUE
        jobs = await gangs.client.list(JOBS, tenant.namespace)
        assert len(jobs) == 3
        assert not any(LABEL_KUEUE_QUEUE in job["metadata"]["labels"] for job in jobs)
        await kill(gangs.client, submission.ref, "somebody")
