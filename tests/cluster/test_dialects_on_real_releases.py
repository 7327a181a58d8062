"""The objects of each dialect as the server stored them, and the nodes of the pods. The documentation shows them.

`GANGJOBS_WRITE_DOCS=1` writes the files of docs/manifests instead of comparing them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import PODS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

Obj = dict[str, Any]

_KINDS = {"workloads": "Workload", "podgroups": "PodGroup"}
SERVED = {"1.36": "v1alpha2", "1.37": "v1beta1"}
"""The version of the Workload API, by release."""

_JOB_SPEC = (
    "suspend",
    "completionMode",
    "completions",
    "parallelism",
    "backoffLimit",
    "podReplacementPolicy",
    "scheduling",
)
_POD_SPEC = ("schedulingGroup",)


def manifests(tenant: Tenant, job_name: str) -> str:
    """Job, Workload, PodGroup and first pod of the tenant's one gang as YAML documents, as the server stored them."""
    version = SERVED[tenant.plane.release]
    with tenant.plane.client() as admin:

        def listed(api: str, plural: str, **query: str) -> list[Obj]:
            items: list[Obj] = admin.get(f"{api}/namespaces/{tenant.namespace}/{plural}", params=query).json()["items"]
            return items

        (job,) = listed("/apis/batch/v1", "jobs")
        first = f"batch.kubernetes.io/job-name={job_name},batch.kubernetes.io/job-completion-index=0"
        (pod,) = listed("/api/v1", "pods", labelSelector=first)
        group = f"scheduling.k8s.io/{version}"
        found = [
            _object({**obj, "apiVersion": group, "kind": kind}, spec=obj["spec"])
            for plural, kind in _KINDS.items()
            for obj in listed(f"/apis/{group}", plural)
        ]
    text = yaml.safe_dump_all([_job(job), *found, _pod(pod)], sort_keys=False)
    return _steady(text, job, [obj for obj in found if obj["kind"] == "Workload"])


def _object(obj: Obj, *, spec: Obj) -> Obj:
    metadata = {
        field: obj["metadata"][field] for field in ("name", "finalizers", "ownerReferences") if field in obj["metadata"]
    }
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata, "spec": spec}


def _job(job: Obj) -> Obj:
    template = job["spec"]["template"]
    pod_spec = {field: template["spec"][field] for field in _POD_SPEC if field in template["spec"]}
    trimmed: Obj = {"metadata": {"finalizers": template["metadata"]["finalizers"]}, "spec": pod_spec}
    spec = {field: job["spec"][field] for field in _JOB_SPEC if field in job["spec"]}
    return _object({**job, "apiVersion": "batch/v1", "kind": "Job"}, spec={**spec, "template": trimmed})


def _pod(pod: Obj) -> Obj:
    metadata = {**pod["metadata"], "name": f"{pod['metadata']['generateName']}xxxxx"}
    spec = {field: pod["spec"][field] for field in _POD_SPEC if field in pod["spec"]}
    return _object({**pod, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}, spec=spec)


def _steady(text: str, job: Obj, workloads: list[Obj]) -> str:
    """Replace names and uids that differ from run to run by fixed names."""
    name = job["metadata"]["name"]
    for workload in workloads:
        made = workload["metadata"]["name"]
        if made != name:
            text = re.sub(rf"{re.escape(made)}-({re.escape(name)}-pgt-0)-\w+", rf"{name}-hash-\1-hash", text)
            text = text.replace(made, f"{name}-hash")
    text = re.sub(r"uid: [0-9a-f-]{36}", "uid: 00000000-0000-0000-0000-000000000000", text)
    return text.replace(name, "train")


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
