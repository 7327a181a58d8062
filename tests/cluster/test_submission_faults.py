"""A submission to real control planes: in turn, each request fails or is the last request of its process."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.attempt.task_gangs import CONFIRMED_FOR_S, StartGuard
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import SubmissionState
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOBS, PODS, SERVICES, podgroups, workloads
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG, LABEL_TASK
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.capabilities import discover_for, read_capabilities
from airflow_provider_gangjobs.submission.submit import submit as submit_gang
from gangjobs_sandbox.api.faults import Fault, FaultKind, Faults
from tests.cluster.fault_proxy import FaultProxy
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.provider.task_runner import Task
from tests.submission_faults import FAULTS, SPEC, live_jobs
from tests.submission_requests import id_request
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

FULLY_TESTED_RELEASE = "1.37"
"""Every fault is tried on this release."""
FAULTS_ON_OTHER_RELEASES = ("dies before", "dies after", "500 after")
"""Each request is applied or not, and its process goes on or not. The other faults differ only in the error that the
client raises, so that an API server of any release gets the same requests."""

VERSIONS = {"1.36": "v1alpha2", "1.37": "v1beta1"}


async def submit(gangs: GangService, submission_id: str, api: Any = None) -> Submission:
    return await submit_gang(
        api or gangs.client,
        SPEC,
        id_request(submission_id),
        discovered=await discover_for(gangs.client, SPEC, namespace=gangs.namespace),
        namespace=gangs.namespace,
    )


async def check_one_gang(gangs: GangService, submission: Submission, release: str) -> None:
    """Check that one Job of this id is live, that its objects belong to it, and that its pods are linked and placed."""
    ref = submission.ref
    live = await live_jobs(gangs, submission.submission_id)
    assert [job["metadata"]["uid"] for job in live] == [ref.uid]
    assert live[0]["spec"]["suspend"] is False
    version = VERSIONS[release]
    for resource in (SERVICES, workloads(version), podgroups(version)):
        stored = await gangs.client.get(resource, ref.name, ref.namespace)
        assert ref.uid in {owner["uid"] for owner in stored["metadata"]["ownerReferences"]}
    await until(lambda: _placed(gangs, ref))


async def _placed(gangs: GangService, ref: GangRef) -> bool:
    pods = await gangs.client.list(PODS, ref.namespace, label_selector=f"{LABEL_GANG}={ref.name}")
    assert all("schedulingGroup" in pod["spec"] for pod in pods)
    return len([pod for pod in pods if pod["spec"].get("nodeName")]) == SPEC.workers


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds. A real control plane runs in real time."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.1)


async def ended(gangs: GangService, submission_id: str) -> bool:
    record = await gangs.submission(submission_id)
    return record is not None and record.state is not SubmissionState.IN_PROGRESS


async def emptied(gangs: GangService, namespace: str) -> bool:
    """Return whether no object of the provider is left."""
    for resource in (JOBS, PODS, CONFIGMAPS):
        if await gangs.client.list(resource, namespace, label_selector=LABEL_GANG):
            return False
    return True


def new_process(gangs: GangService, crash: Crash | None = None, **options: Any) -> CrashingClient:
    """Return the client of a process that has read nothing of the cluster yet."""
    client = CrashingClient(gangs.client, crash, **options)
    client.config = replace(client.config)
    vars(client.config)["key"] = uuid4().hex
    return client


@pytest.mark.parametrize("fault_name", FAULTS)
async def test_submission_with_a_fault_at_any_request_ends_in_one_gang(tenant: Tenant, fault_name: str) -> None:
    if tenant.plane.release != FULLY_TESTED_RELEASE and fault_name not in FAULTS_ON_OTHER_RELEASES:
        pytest.skip(f"tried on {FULLY_TESTED_RELEASE}")
    error, applied = FAULTS[fault_name]
    async with GangService.connect(tenant.config) as gangs:
        clean = new_process(gangs)
        await check_one_gang(gangs, await submit(gangs, "clean", clean), tenant.plane.release)
        await gangs.delete_submission("clean", job=True)
        for at, request in enumerate(clean.requests):
            if fault_name == "409" and request.startswith(("GET", "LIST")):
                continue  # an API server answers no read with 409
            submission_id = f"op-{at}"
            faulty = new_process(gangs, Crash(at, applied), error=error)
            try:
                await submit(gangs, submission_id, faulty)
            except (ProcessDied, SubmissionFailed) as stopped:
                precise = stopped.retryable if isinstance(stopped, SubmissionFailed) else error is ProcessDied
            else:
                precise = True
            assert precise, request
            assert faulty.requests[at] == request
            submission = await submit(gangs, submission_id)
            await check_one_gang(gangs, submission, tenant.plane.release)
            assert submission.attempt == 0, request
            await gangs.delete_submission(submission_id, job=True)


async def test_submission_without_faults_sends_each_request_once(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        client = CrashingClient(gangs.client)
        submission = await submit(gangs, "op", client)
        assert len(set(client.requests)) == len(client.requests) <= 8, client.requests
        await check_one_gang(gangs, submission, tenant.plane.release)


REQUEST_S, CLOCK_RATE = 0.45, 10
"""How long each request takes, and how many times as fast as real time the clocks of the start guard run. So the guard
sees an API server that takes 4.5 s for each request."""


class OperatorWithFastClock(GangJobOperator):
    """An operator whose start guard has a fast clock. Airflow says that the try runs."""

    questions = 0

    def _new_start_guard(self, ti: Any) -> StartGuard:
        async def is_running() -> bool:
            self.questions += 1
            return True

        return StartGuard(is_running, started=None, clocks=(lambda: CLOCK_RATE * time.monotonic(),))


class SlowTask(Task):
    kind = OperatorWithFastClock


async def test_slow_api_server_delays_the_start_of_a_gang_and_does_not_prevent_it(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Faults(Fault(FaultKind.DELAY, delay_s=REQUEST_S, times=None))
    async with FaultProxy.opened(tenant.plane) as proxy:
        extra = {"kube_config": proxy.config_with_fault(tenant, slow).kube_config, "namespace": tenant.namespace}
        monkeypatch.setenv("AIRFLOW_CONN_SLOW", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        task = SlowTask(None, "slow", "sleep 600", deferrable=True)

        left = await asyncio.wait_for(asyncio.to_thread(task.defer), TIMEOUT_S)

    sent = [(request["method"], request["path"]) for request in slow.history]
    assert len(sent) == len(set(sent)), sent
    assert isinstance(task.last_operator, OperatorWithFastClock)
    assert task.last_operator.questions == 1
    async with GangService.connect(tenant.config) as gangs:
        (job,) = await gangs.client.list(JOBS, tenant.namespace, label_selector=LABEL_TASK)
        assert (job["metadata"]["name"], job["spec"]["suspend"]) == (left.trigger.args.name, False)
        assert len(sent) * REQUEST_S * CLOCK_RATE > CONFIRMED_FOR_S


async def test_two_submitters_at_once_end_in_one_gang(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submissions = await asyncio.gather(*(submit(gangs, "raced") for _ in range(6)))
        assert len({submission.ref for submission in submissions}) == 1
        await check_one_gang(gangs, submissions[0], tenant.plane.release)


async def test_deleting_an_ongoing_submission_ends_its_pods_and_keeps_the_job(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit(gangs, "op")
        await check_one_gang(gangs, submission, tenant.plane.release)
        assert await gangs.delete_submission("op") == (submission.ref,)
        pods = await gangs.client.list(PODS, tenant.namespace, label_selector=f"{LABEL_GANG}={submission.ref.name}")
        assert pods == []
        assert await gangs.submission("op") is None
        (job,) = await gangs.client.list(JOBS, tenant.namespace, label_selector=LABEL_TASK)
        assert job["metadata"]["uid"] == submission.ref.uid
        again = await submit(gangs, "op")
        assert (again.attempt, again.adopted) == (1, False)
    assert tenant.forbidden_requests() == []


async def test_deleting_with_the_job_leaves_nothing(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit(gangs, "op")
        await check_one_gang(gangs, submission, tenant.plane.release)
        await gangs.delete_submission("op", job=True)
        assert await gangs.delete_submission("op", job=True) in ((), (submission.ref,))  # while it is collected
        await until(lambda: emptied(gangs, tenant.namespace))


async def test_uploaded_files_reach_the_ranks(tenant: Tenant) -> None:
    code = "import os; open(os.environ['GANG_RESULT_PATH'], 'w').write(open('/gang/files/data.bin').read())"
    async with GangService.connect(tenant.config) as gangs:
        content_id = await gangs.upload({"data.bin": b"42", "a.txt": "shadowed"})
        assert await gangs.upload({"data.bin": b"42", "a.txt": "shadowed"}) == content_id
        spec = GangSpec(image="python:3.12", command=["python", "-c", code], workers=2, uploads=[content_id])
        submission = await gangs.submit(spec, submission_id="op")
        await until(lambda: ended(gangs, "op"))
        record = await gangs.submission("op")
        pods = await gangs.client.list(PODS, tenant.namespace, label_selector=f"{LABEL_GANG}={submission.ref.name}")
        messages = [pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] for pod in pods]
        assert (record and record.state, messages) == (SubmissionState.SUCCEEDED, ["42", "42"])
        assert await gangs.delete_upload(content_id)
        assert await gangs.uploads() == []
        await gangs.delete_submission("op", job=True)
    assert tenant.forbidden_requests() == []


async def test_a_dry_run_proves_what_the_release_keeps(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        found = await read_capabilities(gangs.client, namespace=tenant.namespace)
    version = VERSIONS[tenant.plane.release]
    assert (found.release, found.dialects[0], found.holds_gangs) == (tenant.plane.release, version, True)
    assert found.fields["spec.scheduling"] is False  # the gate WorkloadWithJob is off
