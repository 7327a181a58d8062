"""Gangs in queues of the real Kueue manager: how they run, why they wait, and how they end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.served_resources import discover
from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_PRIORITY, LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submit import submit
from airflow_provider_gangjobs.tracking.explanation import read_view
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts
from tests.cluster.gangs import gang_spec, submit_gang
from tests.cluster.role_gangs import leader_and_workers
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.queues.following import following, pods_of, until, waiting_behind
from tests.queues.tenants import kueue_tenant
from tests.submission_requests import task_request
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

QUEUE = "team"
SLEEP = "import time; time.sleep(3000)"
HOLDER = gang_spec(code=SLEEP, queue_name=QUEUE)
"""Holds so much of the quota of 4 CPUs that no other gang of 3 ranks fits beside it."""
KEY = TaskKey("dag", "run", "task", -1)
SHORT = "import time; time.sleep(1)"
QUEUE_READS = ["LIST localqueues", "GET clusterqueues", "GET resourceflavors"]
"""The requests of a submission about a queue that the user names, whose flavor has no Topology."""


@pytest.fixture(scope="session")
def priorities(kueue: Kueue) -> None:
    for name, value in {"low": 1, "high": 100}.items():
        kueue.create("workloadpriorityclasses", {"metadata": {"name": name}, "value": value})


def job_of(tenant: Tenant, submission: Submission) -> dict[str, Any]:
    with tenant.plane.client() as admin:
        path = f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{submission.ref.name}"
        found: dict[str, Any] = admin.get(path).json()
        return found


async def test_gang_that_fits_runs_with_the_documented_rights(tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(queue_name=QUEUE))
        async with following(tenant, submission) as gang:
            event = await gang.event()
    assert event.status is Status.SUCCEEDED, event
    assert job_of(tenant, submission)["metadata"]["labels"][LABEL_KUEUE_QUEUE] == QUEUE
    assert tenant.forbidden_requests() == []


async def test_gang_without_a_queue_sends_no_request_to_kueue(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec())
        async with following(tenant, submission) as gang:
            assert (await gang.event()).status is Status.SUCCEEDED
    sent = [event["requestURI"] for event in tenant.audited()]
    assert "/apis" in sent
    assert [uri for uri in sent if "kueue" in uri.partition("/namespaces/")[0]] == []


async def test_gang_waits_for_quota_with_the_reason_and_runs_when_it_is_free(tenant: Tenant, queue: str) -> None:
    async with (
        GangService.connect(tenant.config) as gangs,
        waiting_behind(tenant, gangs, HOLDER, gang_spec(queue_name=QUEUE)) as waiting,
    ):
        await gangs.delete(waiting.before.ref)
        assert (await waiting.gang.event()).status is Status.SUCCEEDED


async def test_gangs_that_wait_say_their_positions_after_one_read(tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        await submit_gang(gangs, HOLDER, "first")
        await until(lambda: len(pods_of(tenant)) == 3)
        second = await submit_gang(gangs, gang_spec(queue_name=QUEUE), "second")
        third = await submit_gang(gangs, gang_spec(queue_name=QUEUE), "third")
        async with following(tenant, second) as next_gang, following(tenant, third) as last_gang:
            lines = [await gang.line(". Position ") for gang in (next_gang, last_gang)]
            tabs = [await tab_of(gangs, submission, run) for submission, run in ((second, "second"), (third, "third"))]
    # Kueue orders gangs by the second of their creation, so the two may change places between the two reads.
    positions = {f"Position {number} in the ClusterQueue" for number in (1, 2)}
    shown = [f"{tab.phase}: {tab.summary}" for tab in tabs]
    assert {line.rpartition(". ")[2] for line in lines} == {line.rpartition(". ")[2] for line in shown} == positions
    assert [line.rpartition(". ")[0] for line in lines] == [line.rpartition(". ")[0] for line in shown]
    sent = [event["requestURI"] for event in tenant.audited()]
    assert len([uri for uri in sent if "/pendingworkloads" in uri]) == 2, "one by the follower, and one for both tabs"
    assert tenant.forbidden_requests() == []


async def tab_of(gangs: GangService, submission: Submission, run: str) -> GangView:
    """The tab of the gang in Airflow's UI."""
    key = TaskKey("dag", run, "task", -1)
    attempts = await list_attempts(gangs.client, gangs.namespace, key.digest)
    return await read_view(gangs.client, next(one for one in attempts if one.ref == submission.ref))


async def test_connection_gives_a_queue_to_gangs_that_name_none(tenant: Tenant, queue: str, priorities: None) -> None:
    team = replace(tenant.config, queue_name=QUEUE, queue_priority="low")
    async with GangService.connect(team) as gangs, GangService.connect(tenant.config) as without:
        submission = await submit_gang(gangs, gang_spec(code=SLEEP))
        assert submission.queue_defaults == ("queue_name", "queue_priority")
        again = await submit_gang(without, gang_spec(code=SLEEP))
        assert (again.ref, again.queue, again.queue_defaults) == (submission.ref, QUEUE, ())
        labels = job_of(tenant, submission)["metadata"]["labels"]
        assert (labels[LABEL_KUEUE_QUEUE], labels[LABEL_KUEUE_PRIORITY]) == (QUEUE, "low")


async def test_queue_of_the_connection_that_does_not_exist_is_refused(tenant: Tenant, queue: str) -> None:
    async with GangService.connect(replace(tenant.config, queue_name="nosuch")) as gangs:
        with pytest.raises(InvalidGangSpec, match="extra queue_name of the connection: nosuch is no LocalQueue"):
            await submit_gang(gangs, gang_spec())


async def test_queue_that_runs_its_jobs_in_other_clusters_is_refused(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "far"}
    check = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
    kueue.create("admissionchecks", {"metadata": {"name": tenant.namespace}, "spec": check})
    checks = {"admissionChecks": [{"name": tenant.namespace}]}
    kueue.patch("clusterqueues", queue, {"spec": {"admissionChecksStrategy": checks}})
    async with GangService.connect(tenant.config) as gangs:
        with pytest.raises(InvalidGangSpec, match=f"AdmissionCheck {tenant.namespace} lets the pods run in another"):
            await submit_gang(gangs, gang_spec(queue_name=QUEUE))
        assert await gangs.client.list(JOBS, tenant.namespace) == []


NEVER = {
    "never fits": (gang_spec(queue_name=QUEUE, cpu="2"), "maximum capacity (4)", "ExceedsMaxQuota"),
    "resource not listed": (
        GangSpec(image="python:3.12", workers=2, queue_name=QUEUE, resources={"cpu": "1", "memory": "1Mi"}),
        "resource memory unavailable in ClusterQueue",
        "NoMatchingFlavor",
    ),
}


@pytest.mark.parametrize(("spec", "reason", "category"), NEVER.values(), ids=NEVER)
async def test_gang_that_never_fits_times_out_and_holds_nothing(
    kueue: Kueue, tenant: Tenant, queue: str, spec: Any, reason: str, category: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, spec)
        async with following(tenant, submission, Deadlines(queue_s=3)) as gang:
            event = await gang.event()
    assert event.category == category
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.queued")
    assert reason in event.message
    workload = kueue.workload_of(tenant.namespace, submission.ref.uid)
    assert workload is not None
    assert (workload["spec"]["active"], pods_of(tenant), kueue.used_cpu(queue)) == (False, [], "0")
    assert tenant.forbidden_requests() == []


async def test_stopped_gang_does_not_run_when_quota_is_free(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        async with waiting_behind(tenant, gangs, HOLDER, gang_spec(queue_name=QUEUE)) as waiting:
            await gangs.stop(waiting.submission.ref, reason="a person said so")
            event = await waiting.gang.event()
        await gangs.delete(waiting.before.ref)
        third = await submit_gang(gangs, gang_spec(queue_name=QUEUE), "third")
        async with following(tenant, third) as other:
            assert (await other.event()).status is Status.SUCCEEDED
    assert (event.status, event.reason, event.message) == (
        Status.FAILED,
        "Stopped",
        "The gang was stopped: a person said so",
    )
    assert not any("running" in line for line in waiting.gang.lines)
    await until(lambda: failure_of(tenant, waiting.submission) == "DeadlineExceeded")
    assert {pod["metadata"]["labels"]["job-name"] for pod in pods_of(tenant)} == {third.ref.name}


def failure_of(tenant: Tenant, submission: Submission) -> str | None:
    """The reason of the condition Failed of the Job."""
    conditions = job_of(tenant, submission)["status"].get("conditions", ())
    failed = (one["reason"] for one in conditions if (one["type"], one["status"]) == ("Failed", "True"))
    return next(failed, None)


async def test_gangs_that_are_stopped_in_their_queue_fail_and_their_time_to_live_begins(
    kueue: Kueue, tenant: Tenant, queue: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        spec = gang_spec(queue_name=QUEUE, cpu="2", ttl_after_finished_s=1)
        waiting = [await submit_gang(gangs, spec, f"run-{number}") for number in range(12)]
        await until(lambda: all(kueue.workload_of(tenant.namespace, gang.ref.uid) for gang in waiting))
        assert all(await asyncio.gather(*(gangs.stop(gang.ref, reason="enough") for gang in waiting)))
        async with asyncio.timeout(TIMEOUT_S):
            while await gangs.client.list(JOBS, tenant.namespace):  # noqa: ASYNC110 - another process deletes them
                await asyncio.sleep(0.2)
    assert (pods_of(tenant), kueue.used_cpu(queue)) == ([], "0")


async def test_preempted_gang_is_not_timed_out_by_its_age(
    kueue: Kueue, tenant: Tenant, queue: str, priorities: None
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        low = await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE, queue_priority="low"), "low")
        async with following(tenant, low, Deadlines(queue_s=20)) as gang:
            await gang.line("running: 3/3")
            created = datetime.fromisoformat(job_of(tenant, low)["metadata"]["creationTimestamp"])
            await until(lambda: (datetime.now(UTC) - created).total_seconds() > 25)
            high = await submit_gang(gangs, gang_spec(code=SHORT, queue_name=QUEUE, queue_priority="high"), "high")
            async with following(tenant, high) as preempting:
                assert (await preempting.event()).status is Status.SUCCEEDED
            await until(lambda: gang.lines[-1].startswith("running: 3/3") and len(gang.lines) > 3)
    assert any("Preempted" in line or "queued" in line for line in gang.lines), gang.lines


async def test_queue_that_the_cluster_gives_is_obeyed(kueue: Kueue, tenant: Tenant) -> None:
    kueue.create_queue(tenant.namespace, name="default", cpu="2")
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec())
        assert submission.is_suspended
        async with following(tenant, submission) as gang:
            await gang.line("Kueue queue default cannot admit the gang")
    assert pods_of(tenant) == []
    assert job_of(tenant, submission)["metadata"]["generation"] == 1


@pytest.mark.parametrize("name", [QUEUE, "default"])
async def test_submission_that_died_is_completed_by_the_next_try(kueue: Kueue, tenant: Tenant, name: str) -> None:
    """Kueue takes a Job of the queue `default` at once, so the gang may have begun to run."""
    kueue.create_queue(tenant.namespace, name=name)
    spec = gang_spec(queue_name=name, files={"a.txt": "text"})
    async with GangService.connect(tenant.config) as gangs:
        discovered = await discover(gangs.client)
        arguments: dict[str, Any] = {"discovered": discovered, "namespace": tenant.namespace}
        request = task_request(KEY, "somebody")
        dying = CrashingClient(gangs.client, Crash(2 + len(QUEUE_READS), applied=False))
        with pytest.raises(ProcessDied):
            await submit(dying, spec, request, **arguments)
        assert dying.requests[-1] == "POST services"
        submission = await submit(gangs.client, spec, request, **arguments)
        async with following(tenant, submission) as gang:
            event = await gang.event()
    assert (submission.adopted, event.status) == (True, Status.SUCCEEDED), event


async def test_roles_in_a_queue_are_refused_where_the_cluster_serves_no_job_sets(tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        with pytest.raises(GangUnsupported, match=r"does not serve jobset\.x-k8s\.io/v1alpha2"):
            await submit_gang(gangs, leader_and_workers(queue_name=QUEUE, gang="preferred"))
        assert await gangs.client.list(JOBS, tenant.namespace) == []


async def test_gang_that_an_administrator_deactivates_says_so(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE))
        async with following(tenant, submission) as gang:
            await gang.line("running: 3/3")
            deactivate(kueue, tenant, submission)
            await gang.line("is inactive: The workload is deactivated")
            await gangs.stop(submission.ref, reason="a person said so")
            assert (await gang.event()).status is Status.FAILED
    workload = kueue.workload_of(tenant.namespace, submission.ref.uid)
    assert workload is not None
    assert workload["spec"]["active"] is False


async def test_gang_that_kueue_gives_up_ends(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    limit = {"kueue.x-k8s.io/max-exec-time-seconds": "3"}
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE, labels=limit))
        async with following(tenant, submission) as gang:
            event = await gang.event()
    assert (event.status, event.reason) == (Status.FAILED, "DeactivatedByQueue")
    assert "MaximumExecutionTimeExceeded" in event.message
    await until(lambda: kueue.used_cpu(queue) == "0")


async def test_gang_of_a_queue_that_is_held_says_so(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE))
        async with following(tenant, submission) as gang:
            await gang.line("running: 3/3")
            kueue.patch("clusterqueues", queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
            await gang.line("ClusterQueueStopped")


async def test_gang_that_does_not_fit_any_more_after_its_queue_was_held_says_so(
    kueue: Kueue, tenant: Tenant, queue: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE))
        async with following(tenant, submission) as gang:
            await gang.line("running: 3/3")
            kueue.patch("clusterqueues", queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
            await gang.line("ClusterQueueStopped")
            flavor = {"name": queue, "resources": [{"name": "cpu", "nominalQuota": "1"}]}
            group = {"coveredResources": ["cpu"], "flavors": [flavor]}
            kueue.patch("clusterqueues", queue, {"spec": {"stopPolicy": "None", "resourceGroups": [group]}})
            await gang.line("> maximum capacity (1)")
            workload = kueue.workload_of(tenant.namespace, submission.ref.uid)
    assert workload is not None
    conditions = {one["type"]: (one["status"], one["reason"]) for one in workload["status"]["conditions"]}
    assert conditions["Evicted"] == ("True", "ClusterQueueStopped")


async def test_bad_queue_is_refused_before_anything_is_created(
    kueue: Kueue, tenant: Tenant, queue: str, priorities: None
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        with pytest.raises(InvalidGangSpec, match=r"nosuch is no LocalQueue of namespace .* Name one of team"):
            await submit_gang(gangs, gang_spec(queue_name="nosuch"))
        with pytest.raises(InvalidGangSpec, match="urgent is no WorkloadPriorityClass"):
            await submit_gang(gangs, gang_spec(queue_name=QUEUE, queue_priority="urgent"))
        kueue.patch("localqueues", QUEUE, {"spec": {"stopPolicy": "Hold"}}, tenant.namespace)
        with pytest.raises(SubmissionFailed, match="LocalQueue team is held") as held:
            await submit_gang(gangs, gang_spec(queue_name=QUEUE))
        assert held.value.retryable
        assert await gangs.client.list(JOBS, tenant.namespace) == []


async def test_gang_for_which_kueue_makes_no_workload_says_so(kueue: Kueue, plane: ControlPlane) -> None:
    """Without the ClusterRole, a WorkloadPriorityClass that does not exist is not refused by the submission."""
    with kueue_tenant(plane, "no cluster role", cluster_role=False) as tenant:
        kueue.create_queue(tenant.namespace)
        async with GangService.connect(tenant.config) as gangs:
            submission = await submit_gang(gangs, gang_spec(queue_name=QUEUE, queue_priority="nosuch"))
            async with following(tenant, submission, Deadlines(queue_s=8)) as gang:
                event = await gang.event()
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.queued")
    assert "Kueue has made no Workload for the Job" in event.message
    assert "WorkloadPriorityClass (queue_priority)" in event.remedy


async def test_gang_without_the_rights_of_kueue_runs_and_times_out(kueue: Kueue, plane: ControlPlane) -> None:
    with kueue_tenant(plane, "no rights of kueue", role=False, cluster_role=False) as tenant:
        kueue.create_queue(tenant.namespace)
        async with GangService.connect(tenant.config) as gangs:
            fits = await submit_gang(gangs, gang_spec(queue_name=QUEUE), "fits")
            async with following(tenant, fits) as gang:
                assert (await gang.event()).status is Status.SUCCEEDED
            never = await submit_gang(gangs, gang_spec(queue_name=QUEUE, cpu="2"), "never")
            async with following(tenant, never, Deadlines(queue_s=8)) as gang:
                event = await gang.event()
        assert (event.status, event.phase) == (Status.TIMEOUT, "queued")
        assert "maximum capacity (4)" in event.message
        assert {pod["metadata"]["labels"]["job-name"] for pod in pods_of(tenant)} == {fits.ref.name}


def deactivate(kueue: Kueue, tenant: Tenant, submission: Submission) -> None:
    """Deactivate the Workload of the gang, as an administrator."""
    workload = kueue.workload_of(tenant.namespace, submission.ref.uid)
    assert workload is not None
    kueue.patch("workloads", workload["metadata"]["name"], {"spec": {"active": False}}, tenant.namespace)
