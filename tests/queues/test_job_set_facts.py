"""What the real JobSet controller does to the Jobs of a JobSet: why none of them is the main Job of a gang.

`docs/decisions/gang.md`, "Roles in a queue", has the decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.tenant import Tenant
from tests.replies import accepted, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.queues.jobset.controller import JobSetController

ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"


def role(name: str, script: str, *, workers: int = 1, replicas: int = 1) -> dict[str, Any]:
    """A replicated Job whose pods run a shell script, which finds the number of restarts in `$ATTEMPT`."""
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{ATTEMPT_LABEL}']"}}
    container = {
        "name": "main",
        "image": "i",
        "command": ["sh", "-c", script],
        "env": [{"name": "ATTEMPT", "valueFrom": field}],
        "resources": {"requests": {"cpu": "100m"}},
    }
    spec = {
        "parallelism": workers,
        "completions": workers,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


ENDLESS = "sleep 600"


@pytest.fixture
def tenant(job_sets: JobSetController, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace of the test's own."""
    with Tenant.created(job_sets.plane, request.node.name) as tenant:
        yield tenant


def leader_of(job_sets: JobSetController, tenant: Tenant, *, other_than: str = "") -> dict[str, Any]:
    """The Job of the role `leader`, as soon as there is one with another uid than this one."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        job = job_sets.jobs_of(tenant.namespace, "fit").get("leader")
        found[:] = [job] if job is not None and job["metadata"]["uid"] != other_than else []
        return bool(found)

    wait_until(is_there, "the Job of the leader exists")
    return found[0]


@pytest.mark.parametrize("policy", [None, {"maxRestarts": 0}], ids=["no policy", "no restarts"])
def test_job_that_would_be_the_record_is_deleted_when_another_role_fails(
    job_sets: JobSetController, tenant: Tenant, policy: dict[str, Any] | None
) -> None:
    more = {} if policy is None else {"failurePolicy": policy}
    roles = [role("leader", ENDLESS), role("worker", "sleep 1; exit 3")]
    job_sets.create(tenant.namespace, "fit", replicatedJobs=roles, **more)
    leader_of(job_sets, tenant)

    wait_until(
        lambda: set(job_sets.jobs_of(tenant.namespace, "fit")) == {"worker"}, "only the Job of the worker exists"
    )


def test_job_that_is_deleted_is_created_again_under_its_name(job_sets: JobSetController, tenant: Tenant) -> None:
    job_sets.create(tenant.namespace, "fit", replicatedJobs=[role("leader", ENDLESS), role("worker", ENDLESS)])
    first = leader_of(job_sets, tenant)["metadata"]
    with tenant.plane.client() as admin:
        path = f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{first['name']}?propagationPolicy=Background"
        accepted(admin.delete(path))

    again = leader_of(job_sets, tenant, other_than=first["uid"])["metadata"]
    assert again["name"] == first["name"]


def test_job_that_is_suspended_is_started_again(job_sets: JobSetController, tenant: Tenant) -> None:
    job_sets.create(tenant.namespace, "fit", replicatedJobs=[role("leader", ENDLESS), role("worker", ENDLESS)])
    before = leader_of(job_sets, tenant)["metadata"]
    headers = {"Content-Type": "application/merge-patch+json"}
    with tenant.plane.client() as admin:
        path = f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{before['name']}"
        suspended = admin.patch(path, json={"spec": {"suspend": True}}, headers=headers).json()["metadata"][
            "generation"
        ]

    wait_until(
        lambda: leader_of(job_sets, tenant)["metadata"]["generation"] > suspended, "the Job of the leader is changed"
    )
    assert leader_of(job_sets, tenant)["spec"]["suspend"] is False


def test_annotation_of_a_job_is_not_on_its_job_set(job_sets: JobSetController, tenant: Tenant) -> None:
    """So a claim on the Job is lost when the controller creates the Job again from its template."""
    template = role("leader", ENDLESS)
    template["template"]["metadata"] = {"annotations": {"claim": "first"}}
    job_sets.create(tenant.namespace, "fit", replicatedJobs=[template])
    first = leader_of(job_sets, tenant)["metadata"]
    headers = {"Content-Type": "application/merge-patch+json"}
    with tenant.plane.client() as admin:
        path = f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{first['name']}"
        accepted(admin.patch(path, json={"metadata": {"annotations": {"claim": "second"}}}, headers=headers))
        accepted(admin.delete(f"{path}?propagationPolicy=Background"))

    again = leader_of(job_sets, tenant, other_than=first["uid"])["metadata"]
    assert again["annotations"]["claim"] == "first"
