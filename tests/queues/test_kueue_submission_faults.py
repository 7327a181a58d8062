"""A submission into a queue of the real Kueue: in turn, each request fails or is the last request of its process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import ServerError
from airflow_provider_gangjobs.cluster.served_resources import discover
from airflow_provider_gangjobs.gang.render.files import config_map_name
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, SERVICES, podgroups, workloads
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submit import submit as submit_gang
from tests import submission_faults
from tests.crashes import CrashingClient
from tests.submission_faults import fail_at, live_jobs
from tests.submission_requests import id_request
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

SPEC = replace(submission_faults.SPEC, queue_name="team")
VERSIONS = {"1.36": "v1alpha2", "1.37": "v1beta1"}
WEBHOOK = 'failed calling webhook "mjob.kb.io"'
FAULTS: dict[str, tuple[Callable[[], BaseException], bool]] = {
    **{name: submission_faults.FAULTS[name] for name in ("dies before", "dies after", "500 before", "500 after")},
    "webhook": (lambda: ServerError(500, request="request", reason="InternalError", message=WEBHOOK), False),
    "reply lost": submission_faults.FAULTS["reply lost after"],
}


async def submit(gangs: GangService, submission_id: str, api: Any = None) -> Submission:
    discovered = await discover(gangs.client)
    client = api or gangs.client
    return await submit_gang(client, SPEC, id_request(submission_id), discovered=discovered, namespace=gangs.namespace)


async def check_complete(gangs: GangService, job: dict[str, Any], version: str) -> None:
    """Every object of the gang exists and belongs to the Job."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    names = {SERVICES: name, CONFIGMAPS: config_map_name(name), workloads(version): name, podgroups(version): name}
    for resource, of in names.items():
        stored = await gangs.client.get(resource, of, gangs.namespace)
        assert uid in {owner["uid"] for owner in stored["metadata"]["ownerReferences"]}


async def submit_with_fault(gangs: GangService, submission_id: str, at: int, fault_name: str, version: str) -> None:
    """Submit a gang with one fault, check what is left, and submit the gang again."""
    await fail_at(at, FAULTS[fault_name], gangs, lambda client: submit(gangs, submission_id, client))
    for job in await live_jobs(gangs, submission_id):
        if LABEL_KUEUE_QUEUE in job["metadata"]["labels"]:
            await check_complete(gangs, job, version)
        else:
            assert job["spec"]["suspend"] is True
    submission = await submit(gangs, submission_id)
    assert submission.attempt == 0
    await check_runs(gangs, submission, version)


async def check_runs(gangs: GangService, submission: Submission, version: str) -> None:
    """One complete Job of this id is live and in its queue, and Kueue lets it run."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            (job,) = await live_jobs(gangs, submission.submission_id)
            if not job["spec"]["suspend"]:
                break
            await asyncio.sleep(0.1)
    assert (job["metadata"]["uid"], job["metadata"]["labels"][LABEL_KUEUE_QUEUE]) == (submission.ref.uid, "team")
    await check_complete(gangs, job, version)


@pytest.mark.parametrize("fault_name", FAULTS)
async def test_each_request_may_go_wrong_and_one_complete_gang_is_in_its_queue(
    tenant: Tenant, queue: str, fault_name: str
) -> None:
    version = VERSIONS[tenant.plane.release]
    async with GangService.connect(tenant.config) as gangs:
        clean = CrashingClient(gangs.client)
        await check_runs(gangs, await submit(gangs, "clean", clean), version)
        plays = [submit_with_fault(gangs, f"op-{at}", at, fault_name, version) for at in range(len(clean.requests))]
        for request, found in zip(clean.requests, await asyncio.gather(*plays, return_exceptions=True), strict=True):
            assert found is None, f"{fault_name} at {request}"
    assert tenant.forbidden_requests() == []
