"""The objects of each dialect as the server stored them, and the nodes of the pods. The documentation shows them.

`GANGJOBS_WRITE_DOCS=1` writes the files of docs/manifests instead of comparing them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.stored_manifests import SERVED, manifests

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

MANIFESTS = Path(__file__).resolve().parents[2] / "docs" / "manifests"
BRIEF = "print('done')"


def is_documented(name: str, stored: str) -> bool:
    path = MANIFESTS / name
    if os.environ.get("GANGJOBS_WRITE_DOCS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(stored)
    assert path.read_text() == stored
    return True


@pytest.mark.representative
async def test_stored_objects_are_those_of_the_documentation(tenant: Tenant) -> None:
    version = SERVED[tenant.plane.release]
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(3, code=BRIEF))
        assert submission.decision == f"gang:{version}"
        event = await follow_gang(tenant, submission)
        assert event.status is Status.SUCCEEDED, event
        stored = manifests(tenant, submission.ref.name)
        pods = await gangs.client.list(PODS, tenant.namespace)
    assert is_documented(f"{tenant.plane.release}-{version}.yaml", stored)
    assert {pod["spec"]["nodeName"] for pod in pods} <= {"node-0", "node-1"}


@pytest.mark.representative
async def test_gang_by_job_scheduling_is_made_by_the_job_controller(native_tenant: Tenant) -> None:
    async with GangService.connect(native_tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(3, code=BRIEF, gang_scheduler="job-scheduling"))
        assert submission.decision == "gang:job-scheduling"
        event = await follow_gang(native_tenant, submission)
        assert event.status is Status.SUCCEEDED, event
    stored = manifests(native_tenant, submission.ref.name)
    assert is_documented("1.37-job-scheduling.yaml", stored)
    assert native_tenant.forbidden_requests() == []
