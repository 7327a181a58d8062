"""The check-up of real control planes: what people configure wrongly is named, and a real gang is the proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.checkup import Finding, Health
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.service.doctor import Examination, examine, try_gang
from tests.cluster.admission import WEBHOOKS, created, policy, wait_until_pods_are_refused, webhook
from tests.cluster.releases import NONE
from tests.cluster.tenant import ROLE
from tests.replies import accepted

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

SLEEP = ("python", "-c", "import time; time.sleep(600)")
NEWEST = pytest.mark.parametrize("plane", ["1.37"], indirect=True)


def examination(tenant: Tenant, **more: Any) -> Examination:
    return Examination(namespace=tenant.namespace, image="python:3.12", command=SLEEP, **more)


async def findings_of(tenant: Tenant, **more: Any) -> dict[str, Finding]:
    async with GangService.connect(tenant.config) as gangs:
        return {finding.check: finding for finding in await examine(gangs, examination(tenant, **more))}


def problems(found: dict[str, Finding]) -> list[str]:
    return [name for name, finding in found.items() if finding.health is Health.PROBLEM]


async def test_cluster_with_the_documented_role_is_in_order(tenant: Tenant) -> None:
    found = await findings_of(tenant, tries_gang=True)
    assert problems(found) == [], found
    assert found["rights of rbac.yaml"].what == "all given"
    assert "a gang of two pods ran after" in found["placement"].what
    assert tenant.forbidden_requests() == []


@NEWEST
async def test_right_that_is_missing_is_named(tenant: Tenant) -> None:
    rules = [rule for rule in yaml.safe_load(ROLE.read_text())["rules"] if rule["resources"] != ["pods/log"]]
    found = await findings_of(tenant.with_account("without-logs", rules))
    assert problems(found) == ["rights of rbac.yaml"]
    assert found["rights of rbac.yaml"].what == "missing: get pods/log (to copy the logs of the ranks)"


@NEWEST
async def test_account_without_any_right_is_told_its_rights_first(tenant: Tenant) -> None:
    found = await findings_of(tenant.with_account("nobody", []))
    assert problems(found)[0] == "rights of rbac.yaml"
    assert found["leftovers"].health is Health.UNKNOWN


@pytest.mark.parametrize("bare_plane", [NONE], indirect=True)
async def test_gates_that_are_off_are_named(bare_tenant: Tenant) -> None:
    found = await findings_of(bare_tenant)
    assert problems(found) == ["Workload API"]
    assert "GenericWorkload" in found["Workload API"].remedy


@NEWEST
async def test_webhook_that_is_away_is_named(tenant: Tenant) -> None:
    away = webhook(tenant.namespace, "https://127.0.0.1:1/check", "batch", "jobs")
    with created(tenant.plane, WEBHOOKS, away):
        found = await eventually_refused(tenant)
    assert "failed calling webhook" in found.what
    assert found.remedy.startswith("Start the controller of this webhook")


async def eventually_refused(tenant: Tenant) -> Finding:
    """Return the problem with the admission of Jobs, when the API server knows the webhook or the policy."""
    for _ in range(60):
        found = (await findings_of(tenant))["admission of Jobs"]
        if found.health is Health.PROBLEM:
            return found
    raise AssertionError(found)


@NEWEST
async def test_policy_that_refuses_jobs_is_named(tenant: Tenant) -> None:
    with policy(tenant, "batch", "jobs"):
        found = await eventually_refused(tenant)
    assert "denied request" in found.what
    assert found.remedy.startswith("Change the policy")


@NEWEST
async def test_policy_that_refuses_pods_is_named(tenant: Tenant) -> None:
    """A dry run of a Job does not show it."""
    with policy(tenant, "", "pods"):
        wait_until_pods_are_refused(tenant)
        async with GangService.connect(tenant.config) as gangs:
            found = await try_gang(gangs, examination(tenant, try_within_s=25))
    assert found.health is Health.PROBLEM
    assert "denied request" in found.what


@NEWEST
@pytest.mark.parametrize(
    ("program", "remedy"),
    [("kube-controller-manager", "kube-controller-manager"), ("kube-scheduler", "Check that the scheduler runs")],
)
async def test_program_of_the_control_plane_that_has_stopped_is_named(
    tenant: Tenant, program: str, remedy: str
) -> None:
    with tenant.plane.stopped(program):
        async with GangService.connect(tenant.config) as gangs:
            found = await try_gang(gangs, examination(tenant, tries_gang=True, try_within_s=3))
    assert found.health is Health.PROBLEM
    assert remedy in found.remedy


@NEWEST
async def test_quota_that_leaves_no_pod_is_named(tenant: Tenant) -> None:
    """The status is that of the quota controller, which these control planes do not run."""
    hard = {"hard": {"pods": "0"}}
    path = f"/api/v1/namespaces/{tenant.namespace}/resourcequotas"
    with tenant.plane.client() as admin:
        quota = accepted(admin.post(path, json={"metadata": {"name": "small"}, "spec": hard}))
        accepted(admin.put(f"{path}/small/status", json={**quota, "status": {**hard, "used": {"pods": "0"}}}))
    wait_until_pods_are_refused(tenant)
    async with GangService.connect(tenant.config) as gangs:
        found = await try_gang(gangs, examination(tenant, try_within_s=25))
    assert found.health is Health.PROBLEM
    assert "exceeded quota: small" in found.what


@NEWEST
async def test_credentials_that_are_not_valid_are_named(tenant: Tenant) -> None:
    async with GangService.connect(with_kubeconfig(tenant, token="expired")) as gangs:
        (found,) = await examine(gangs, examination(tenant))
    assert (found.check, found.health) == ("connection", Health.PROBLEM)
    assert found.remedy.startswith("Renew the credentials")


@NEWEST
async def test_address_of_another_program_is_named(tenant: Tenant) -> None:
    config = with_kubeconfig(tenant, server="https://127.0.0.1:1")
    async with Client(config, retry_for_s=1) as client:
        (found,) = await examine(GangService(client), examination(tenant))
    assert (found.check, found.health) == ("connection", Health.PROBLEM)
    assert found.remedy.startswith("Check the address")


@NEWEST
async def test_namespace_that_does_not_exist_is_named(tenant: Tenant) -> None:
    admin = ClusterConfig.from_extras("admin", {"kube_config_path": str(tenant.plane.folder / "admin.kubeconfig")})
    async with GangService.connect(admin) as gangs:
        found = {finding.check: finding for finding in await examine(gangs, Examination(namespace="nosuch"))}
    assert problems(found) == ["admission of Jobs"]
    assert found["admission of Jobs"].what == "namespace nosuch does not exist"


@NEWEST
async def test_scheduler_that_is_not_installed_is_named(tenant: Tenant) -> None:
    async with GangService.connect(replace(tenant.config, gang_scheduler="volcano")) as gangs:
        found = {finding.check: finding for finding in await examine(gangs, examination(tenant))}
    assert problems(found) == ["schedulers"]
    assert "the connection names volcano" in found["schedulers"].what


@NEWEST
async def test_queue_without_kueue_is_named(tenant: Tenant) -> None:
    found = await findings_of(tenant, queue="team")
    assert problems(found) == ["queues"]
    assert found["queues"].what == "queue team is named, and Kueue is not installed"


def with_kubeconfig(tenant: Tenant, *, server: str = "", token: str = "") -> ClusterConfig:
    """Return the connection of the tenant with another address or token."""
    content = yaml.safe_load(tenant.kubeconfig.read_text())
    if server:
        content["clusters"][0]["cluster"]["server"] = server
    if token:
        content["users"][0]["user"]["token"] = token
    return ClusterConfig.from_extras("wrong", {"kube_config": content, "namespace": tenant.namespace})
