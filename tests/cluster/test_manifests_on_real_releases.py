"""Manifests of users on real control planes: what Kubernetes does with them, a gang does, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import MEET, follow_gang, submit_gang

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

ONE_SUCCEEDS = "import os, sys; sys.exit(os.environ['JOB_COMPLETION_INDEX'] != '2')"


def manifest(code: str, pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Job of three ranks with a sidecar before the container of the rank."""
    resources = {"requests": {"cpu": "100m"}}
    sidecar = {"name": "sidecar", "image": "a", "command": ["python", "-c", "print('side')"], "resources": resources}
    main = {"name": "rank", "image": "python:3.12", "command": ["python", "-c", code], "resources": resources}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ring"},
        "spec": {
            "completions": 3,
            "parallelism": 3,
            "completionMode": "Indexed",
            **spec,
            "template": {
                "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "rank"}},
                "spec": {"restartPolicy": "Never", "containers": [sidecar, main], **pod},
            },
        },
    }


async def test_suspended_ranks_with_a_subdomain_and_a_sidecar_meet_when_somebody_resumes_them(tenant: Tenant) -> None:
    spec = GangSpec(manifest=manifest(MEET, {"subdomain": "ring-peers"}, suspend=True), env={"ADDED": "1"})
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, spec)
        assert submission.is_suspended
        assert [note.split()[0] for note in submission.notes] == [
            "manifest.metadata.name:",
            "manifest.spec.backoffLimit:",
            "manifest.spec.template.spec.containers[0].name:",
            "manifest.spec.template.spec.subdomain:",
        ]

        await gangs.client.patch(JOBS, submission.ref.name, tenant.namespace, {"spec": {"suspend": False}})
        event = await follow_gang(tenant, submission)
        assert event.status is Status.SUCCEEDED, event
        assert [one.message for one in await gangs.outcomes(submission.ref)] == ["[1, 2]", "[0]", "[0]"]


async def test_gang_has_succeeded_if_kubernetes_says_so_by_the_success_policy(tenant: Tenant) -> None:
    policy = {"rules": [{"succeededIndexes": "0,2", "succeededCount": 1}]}
    spec = GangSpec(manifest=manifest(ONE_SUCCEEDS, {}, successPolicy=policy), gang="off")
    async with GangService.connect(tenant.config) as gangs:
        event = await follow_gang(tenant, await submit_gang(gangs, spec))
    assert event.status is Status.SUCCEEDED, event
