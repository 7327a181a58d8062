"""The check-up of real control planes: rights, gates, a stopped controller manager, webhooks, and a real gang."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from airflow_provider_gangjobs.gang.checkup import Finding, Health
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.service.doctor import Examination, examine, try_gang
from tests.airflow.polling import wait_for
from tests.cluster.releases import NONE
from tests.cluster.tenant import ROLE
from tests.replies import accepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

SLEEP = ("python", "-c", "import time; time.sleep(600)")
NEWEST = pytest.mark.parametrize("plane", ["1.37"], indirect=True)
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


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


@contextmanager
def created(plane: ControlPlane, path: str, body: dict[str, Any]) -> Iterator[None]:
    with plane.client() as admin:
        accepted(admin.post(path, json=body))
        try:
            yield
        finally:
            admin.delete(f"{path}/{body['metadata']['name']}")


def webhook(namespace: str) -> dict[str, Any]:
    """Return a webhook for the Jobs of a namespace, whose server does not run."""
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]}
    hook = {
        "name": "jobs.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/check"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 2,
    }
    return {"metadata": {"name": f"away-{namespace}"}, "webhooks": [hook]}


@NEWEST
async def test_webhook_that_is_away_is_named(tenant: Tenant) -> None:
    with created(tenant.plane, WEBHOOKS, webhook(tenant.namespace)):
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


@contextmanager
def policy(tenant: Tenant, group: str, resource: str) -> Iterator[None]:
    """A policy of the tenant's namespace that refuses objects of this resource."""
    name = f"no-{resource}-{tenant.namespace}"
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE"]}
    constraints = {
        "resourceRules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": tenant.namespace}},
    }
    body = {
        "metadata": {"name": name},
        "spec": {"matchConstraints": constraints, "validations": [{"expression": "false"}]},
    }
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    with created(tenant.plane, POLICIES, body), created(tenant.plane, BINDINGS, binding):
        yield


@NEWEST
async def test_policy_that_refuses_jobs_is_named(tenant: Tenant) -> None:
    with policy(tenant, "batch", "jobs"):
        found = await eventually_refused(tenant)
    assert "denied request" in found.what
    assert found.remedy.startswith("Change the policy")


@NEWEST
async def test_policy_that_refuses_pods_is_named(tenant: Tenant) -> None:
    """A dry run of a Job does not show it."""
    container = {"name": "main", "image": "python:3.12"}
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    with policy(tenant, "", "pods"):
        with tenant.plane.client() as admin:
            wait_for(
                "the policy",
                lambda: (
                    admin.post(f"/api/v1/namespaces/{tenant.namespace}/pods?dryRun=All", json=pod).status_code == 422
                ),
            )
        async with GangService.connect(tenant.config) as gangs:
            found = await try_gang(gangs, examination(tenant, try_within_s=25))
    assert found.health is Health.PROBLEM
    assert "denied request" in found.what


@NEWEST
async def test_controller_manager_that_has_stopped_is_named(tenant: Tenant) -> None:
    pid = tenant.plane.pids()["kube-controller-manager"]
    os.kill(pid, signal.SIGSTOP)
    try:
        async with GangService.connect(tenant.config) as gangs:
            found = await try_gang(gangs, examination(tenant, tries_gang=True, try_within_s=3))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found.health is Health.PROBLEM
    assert "kube-controller-manager" in found.remedy
