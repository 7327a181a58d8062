"""Real control planes without gang scheduling: what is reported, what is refused, and what runs anyway.

The control planes are the newest release as it comes, and releases that have no Workload API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import NotFound
from airflow_provider_gangjobs.exceptions import GangUnsupported
from airflow_provider_gangjobs.gang.spec import Validate
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import JOBS, podgroups
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.releases import NONE, release_flags

if TYPE_CHECKING:
    from airflow_provider_gangjobs.submission.capabilities import Capabilities
    from tests.cluster.tenant import Tenant

BRIEF = "print('done')"
NEWEST = pytest.mark.parametrize("bare_plane", [NONE], indirect=True)


def release_of(tenant: Tenant) -> str:
    release, _ = release_flags(tenant.plane.release)
    return release


def reason_of(tenant: Tenant) -> str:
    return f"Kubernetes {release_of(tenant)} does not serve the Workload API"


async def abilities_of(config: ClusterConfig) -> Capabilities:
    async with GangService.connect(config) as gangs:
        return await gangs.capabilities()


def made(tenant: Tenant) -> list[str]:
    """Return the resources that the tenant has created, without dry runs."""
    return [
        event["objectRef"]["resource"]
        for event in tenant.audited()
        if event["verb"] == "create" and "dryRun" not in event["requestURI"]
    ]


async def test_capabilities_report_that_the_cluster_has_no_gangs(bare_tenant: Tenant) -> None:
    found = await abilities_of(bare_tenant.config)
    assert (found.release, found.dialects, found.scheduling_versions) == (release_of(bare_tenant), (), ())
    assert (found.holds_gangs, found.unknown) == (False, {})
    assert found.fields == {"spec.scheduling": False}
    assert [(gate.name, gate.is_on) for gate in found.gates if gate.component == "kube-apiserver"] == [
        ("GenericWorkload", False),
        ("WorkloadWithJob", False),
    ]
    assert made(bare_tenant) == []


@NEWEST
async def test_sandbox_without_gangs_reports_the_same(bare_tenant: Tenant) -> None:
    real = await abilities_of(bare_tenant.config)
    with running(SandboxConfig(nodes=0, kubernetes=NONE)) as sandbox:
        config = ClusterConfig.from_extras("sandbox", {"kube_config_path": str(sandbox.kubeconfig_path)})
        assert await abilities_of(config) == real


@pytest.mark.parametrize("validate", Validate)
async def test_required_gang_is_refused_before_anything_is_created(bare_tenant: Tenant, validate: Validate) -> None:
    async with GangService.connect(bare_tenant.config) as gangs:
        with pytest.raises(GangUnsupported) as refused:
            await gangs.submit(gang_spec(3, code=BRIEF), submission_id="op", validate=validate)
    assert refused.value.reason == reason_of(bare_tenant)
    for way in ("Volcano", "queue of Kueue", 'gang="preferred"'):
        assert way in refused.value.remedy
    assert made(bare_tenant) == []


async def test_preferred_gang_runs_as_plain_pods_and_reports_the_reason(bare_tenant: Tenant) -> None:
    async with GangService.connect(bare_tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(3, cpu="100m", gang="preferred"))
        reason = reason_of(bare_tenant)
        assert (submission.decision, submission.notes) == (f"basic:{reason}", (f"Not a gang: {reason}",))
        event = await follow_gang(bare_tenant, submission)
        assert event.status is Status.SUCCEEDED, event
        assert [outcome.result for outcome in await gangs.outcomes(submission.ref)] == [[1, 2], [0], [0]]
        job = await gangs.client.get(JOBS, submission.ref.name, bare_tenant.namespace)
        assert read_job(job).placement == submission.decision
        with pytest.raises(NotFound):
            await gangs.client.list(podgroups("v1beta1"), bare_tenant.namespace)
