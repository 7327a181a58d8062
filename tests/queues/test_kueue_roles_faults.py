"""Requests about a gang with roles in a queue of the real Kueue: in turn, each fails or is the last of its process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from airflow_provider_gangjobs.cluster.served_resources import discover
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.render.files import config_map_name
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOB_SETS, JOBS, SERVICES
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submit import submit as submit_gang
from tests import submission_faults
from tests.cluster.role_gangs import SLEEP, leader_and_workers
from tests.crashes import Crash, CrashingClient, ProcessDied, crash_points
from tests.queues.following import until
from tests.submission_faults import fail_at, live_jobs
from tests.submission_requests import id_request
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

pytestmark = pytest.mark.clusters("job_set_kueue")
SPEC: Final = leader_and_workers(
    leader=SLEEP, worker=SLEEP, cpu="10m", queue_name="team", gang="preferred", files={"a": "b"}, termination_grace_s=1
)
NEVER_FITS: Final = leader_and_workers(leader=SLEEP, worker=SLEEP, cpu="2", queue_name="team", gang="preferred")
FAULTS: Final = ("dies before", "dies after", "500 before", "500 after", "reply lost after")
# The provider sends the same requests to each release, so that the older one sees the processes that die only.
FAULTS_OF_RELEASES: Final = [
    *(("roles-1.37-kueue-0.19", fault) for fault in FAULTS),
    ("roles-1.36-kueue-0.15", "dies after"),
]


async def submit(gangs: GangService, submission_id: str, *, spec: GangSpec = SPEC, api: Any = None) -> Submission:
    discovered = await discover(gangs.client)
    return await submit_gang(
        api or gangs.client, spec, id_request(submission_id), discovered=discovered, namespace=gangs.namespace
    )


async def job_set_of(gangs: GangService, record: dict[str, Any]) -> dict[str, Any] | None:
    """The JobSet of a record."""
    selector = gang_selector(record["metadata"]["name"])
    found = await gangs.client.list(JOB_SETS, gangs.namespace, label_selector=selector)
    assert all(one["metadata"]["ownerReferences"][0]["uid"] == record["metadata"]["uid"] for one in found)
    return found[0] if found else None


async def check_whole(gangs: GangService, record: dict[str, Any]) -> None:
    """Service, files and the Jobs of both roles exist, so Kueue may let the gang run."""
    name, uid = record["metadata"]["name"], record["metadata"]["uid"]
    for resource, of in {SERVICES: name, CONFIGMAPS: config_map_name(name)}.items():
        stored = await gangs.client.get(resource, of, gangs.namespace)
        assert uid in {owner["uid"] for owner in stored["metadata"]["ownerReferences"]}
    assert set(await uids_of_roles(gangs, name)) == {"leader", "worker"}


async def uids_of_roles(gangs: GangService, name: str) -> dict[str, str]:
    jobs = await gangs.client.list(JOBS, gangs.namespace, label_selector=gang_selector(name))
    roles = {job["metadata"]["labels"].get("gangjobs.airflow/gang-role"): job["metadata"]["uid"] for job in jobs}
    return {role: uid for role, uid in roles.items() if role is not None}


async def submit_with_fault(gangs: GangService, submission_id: str, at: int, fault_name: str) -> None:
    """Submit a gang with one fault, check what is left, and submit the gang again."""
    fault = submission_faults.FAULTS[fault_name]
    await fail_at(at, fault, gangs, lambda client: submit(gangs, submission_id, api=client))
    for record in await live_jobs(gangs, submission_id):
        job_set = await job_set_of(gangs, record)
        if job_set is not None and LABEL_KUEUE_QUEUE in job_set["metadata"]["labels"]:
            await check_whole(gangs, record)
        else:
            assert record["spec"]["suspend"] is True
            assert job_set is None or job_set["spec"]["suspend"] is True
    submission = await submit(gangs, submission_id)
    assert submission.attempt == 0
    await check_runs(gangs, submission)


async def check_runs(gangs: GangService, submission: Submission) -> None:
    """One complete gang of this id is live and in its queue, and Kueue lets it run."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            (record,) = await live_jobs(gangs, submission.submission_id)
            job_set = await job_set_of(gangs, record)
            assert job_set is not None
            if not job_set["spec"]["suspend"]:
                break
            await asyncio.sleep(0.1)
    assert record["metadata"]["uid"] == submission.ref.uid
    noted = read_job(record).submitted.role_jobs
    assert noted == await uids_of_roles(gangs, submission.ref.name)
    assert record["spec"]["suspend"] is False
    await check_whole(gangs, record)


@pytest.mark.parametrize(("running_cluster", "fault_name"), FAULTS_OF_RELEASES, indirect=["running_cluster"])
async def test_each_request_may_go_wrong_and_one_complete_gang_is_in_its_queue(
    tenant: Tenant, queue: str, fault_name: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        clean = CrashingClient(gangs.client)
        await check_runs(gangs, await submit(gangs, "clean", api=clean))
        plays = [submit_with_fault(gangs, f"op-{at}", at, fault_name) for at in range(len(clean.requests))]
        for request, found in zip(clean.requests, await asyncio.gather(*plays, return_exceptions=True), strict=True):
            assert found is None, f"{fault_name} at {request}"
    assert tenant.forbidden_requests() == []


async def stop_with_crash(gangs: GangService, submission_id: str, crash: Crash) -> None:
    """Stop a gang that waits in its queue by a process that dies, and submit the gang again."""
    first = await submit(gangs, submission_id, spec=NEVER_FITS)
    with suppress(ProcessDied):
        await GangService(CrashingClient(gangs.client, crash)).stop(first.ref, reason="Enough: stop")
    second = await submit(gangs, submission_id, spec=NEVER_FITS)
    record = await gangs.client.get(JOBS, first.ref.name, gangs.namespace)
    is_stopped = read_job(record).is_stopped
    assert (second.ref == first.ref, second.attempt) == ((False, 1) if is_stopped else (True, 0))
    async with asyncio.timeout(TIMEOUT_S):
        while is_stopped and await may_run(gangs, record):  # noqa: ASYNC110 - controllers end the gang
            await asyncio.sleep(0.1)
    assert await may_run(gangs, record) is not is_stopped


async def may_run(gangs: GangService, record: dict[str, Any]) -> bool:
    """Whether the gang has a JobSet that has not failed."""
    job_set = await job_set_of(gangs, record)
    conditions = job_set["status"].get("conditions", ()) if job_set is not None else ()
    return job_set is not None and "Failed" not in {one["type"] for one in conditions if one["status"] == "True"}


async def test_stop_that_died_is_finished_by_the_next_submission(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    async with GangService.connect(tenant.config) as gangs:
        clean = CrashingClient(gangs.client)
        submission = await submit(gangs, "clean", spec=NEVER_FITS)
        assert await GangService(clean).stop(submission.ref, reason="Enough: stop")
        crashes = crash_points(clean.requests)
        plays = [stop_with_crash(gangs, f"op-{number}", crash) for number, crash in enumerate(crashes)]
        for crash, found in zip(crashes, await asyncio.gather(*plays, return_exceptions=True), strict=True):
            assert found is None, f"{crash}: {clean.requests[crash.at]}"
    await until(lambda: kueue.used_cpu(queue) == "0")
    assert tenant.forbidden_requests() == []
