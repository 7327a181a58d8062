"""Gangs with roles, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG_ROLE
from airflow_provider_gangjobs.submission.capabilities import discover_for
from airflow_provider_gangjobs.submission.submit import submit
from gangjobs_sandbox.resources import JOBS
from tests.provider.submission_cluster import KEY
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane
from tests.submission_requests import task_request

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef

LEADER_AND_WORKERS = GangSpec(
    roles={
        "leader": {"image": "lead:1", "resources": {"cpu": "1"}},
        "worker": {"image": "work:1", "workers": 3, "resources": {"cpu": "1"}},
    },
    files={"a.py": "pass\n"},
)
CLAIM = "ti-1"


async def submit_roles(plane: VirtualControlPlane, spec: GangSpec = LEADER_AND_WORKERS, **options: Any) -> GangRef:
    """Submit a gang with roles, as a task does."""
    request = task_request(**{"key": KEY, "claim": CLAIM, **options})
    discovered = await discover_for(plane.client, spec, namespace=NAMESPACE)
    return (await submit(plane.client, spec, request, discovered=discovered, namespace=NAMESPACE)).ref


async def running(plane: VirtualControlPlane, **options: Any) -> GangRef:
    """Submit the gang, and wait until its four ranks run."""
    ref = await submit_roles(plane, **options)
    await plane.until(lambda: plane.running_ranks(ref.name) == 4)
    return ref


def pod_of(plane: VirtualControlPlane, ref: GangRef, role: str, rank: int = 0) -> dict[str, Any]:
    """Return the pod of a rank of a role."""
    pods = [pod for pod in plane.pods(ref.name) if pod["metadata"]["labels"][LABEL_GANG_ROLE] == role]
    return pods[rank]


def end(plane: VirtualControlPlane, ref: GangRef, role: str, rank: int = 0, exit_code: int = 0, text: str = "") -> None:
    """End the program of a rank of a role."""
    plane._end(pod_of(plane, ref, role, rank), exit_code, text)


def end_all(plane: VirtualControlPlane, ref: GangRef) -> None:
    """End the programs of all ranks. Each writes the name of its pod's role as its result."""
    for pod in plane.pods(ref.name):
        plane._end(pod, 0, f'"{pod["metadata"]["labels"][LABEL_GANG_ROLE]}"')


def jobs_of(plane: VirtualControlPlane, ref: GangRef) -> dict[str, dict[str, Any]]:
    """Return the Jobs of the gang that exist, by role."""
    jobs = plane.registry.list(JOBS, NAMESPACE, f"gangjobs.airflow/gang={ref.name}")
    return {job["metadata"]["labels"][LABEL_GANG_ROLE]: job for job in jobs}


def condition_of(job: dict[str, Any], kind: str) -> str | None:
    """Return the reason of a true condition of a Job, or `None`."""
    found = job["status"].get("conditions", ())
    return next((one.get("reason", "") for one in found if one["type"] == kind and one["status"] == "True"), None)
