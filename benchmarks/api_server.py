"""A real API server for benchmarks, and the objects of gangs that benchmarks write to it.

By default no controller, scheduler or node runs, so a benchmark measures the client and the API server only, and the
state is exactly what the benchmark wrote.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from airflow_provider_gangjobs.cluster.client import Client, PatchType
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST, LABEL_ATTEMPT, LABEL_GANG
from benchmarks.harness import process
from tests.cluster.control_plane import ControlPlane
from tests.cluster.controlplane.build import binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from airflow_provider_gangjobs.cluster.resources import Resource
    from tests.cluster.tenant import Tenant

RELEASE = "1.36"
REST_CPU = 0.25
"""Cores that an API server uses at rest, with its controllers' leases and resyncs."""
REST_MAX_S = 120
WRITES_IN_FLIGHT = 24
Json = dict[str, Any]
T = TypeVar("T")


class ApiServerOnly(ControlPlane):
    """etcd and the API server."""

    def _start_clients(self) -> None:
        pass


@contextmanager
def api_server() -> Iterator[ControlPlane]:
    """Run a real API server during the block. `make clusters` builds the API server."""
    with _running(ApiServerOnly) as plane:
        yield plane


@contextmanager
def control_plane(release: str = RELEASE) -> Iterator[ControlPlane]:
    """Run a real API server with controllers and scheduler during the block."""
    with _running(ControlPlane, release) as plane:
        yield plane


@contextmanager
def _running(kind: type[ControlPlane], release: str = RELEASE) -> Iterator[ControlPlane]:
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        plane = kind(release, binary(release), Path(folder))
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()


def allow_all(tenant: Tenant) -> None:
    """Allow the account everything. The peer needs permissions that our Role does not have (`jobs/status`)."""
    subject = {"kind": "ServiceAccount", "name": "airflow", "namespace": tenant.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{tenant.namespace}/rolebindings"
    with tenant.plane.client() as admin:
        body = {"metadata": {"name": "peer"}, "roleRef": role, "subjects": [subject]}
        admin.post(path, json=body).raise_for_status()


def admin_config(plane: ControlPlane, namespace: str) -> ClusterConfig:
    """Return the config of the administrator, which writes what controllers and kubelets would write."""
    kubeconfig = str(plane.folder / "admin.kubeconfig")
    return ClusterConfig.from_extras("admin", {"kube_config_path": kubeconfig, "namespace": namespace})


def airflow_environment(tenant: Tenant) -> dict[str, str]:
    """Return environment variables with the Airflow connection, for either provider."""
    return {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes", "extra": tenant.extras}),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    }


def cpu_s(plane: ControlPlane, component: str = "kube-apiserver") -> float:
    """Return the CPU seconds that a component of the control plane has used."""
    pid = plane.pids()[component]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def requests_of(tenant: Tenant, since: datetime, until: datetime) -> int:
    """Return the number of the tenant's requests that ended in this time, by the API server's audit log."""
    return sum(since <= datetime.fromisoformat(event["stageTimestamp"]) <= until for event in tenant.audited())


@contextmanager
def hollow_nodes(plane: ControlPlane, count: int, *, lasts_s: float = 0.0, logs: bool = False) -> Iterator[int]:
    """Run hollow nodes in a process of their own during the block, and yield the id of the process.

    :param lasts_s: How long each container runs, in seconds.
    :param logs: Whether the nodes serve logs.
    """
    kubeconfig = str(plane.folder / "admin.kubeconfig")
    with process("benchmarks.hollow_nodes", kubeconfig, count, lasts_s, *["logs"] * logs) as nodes:
        yield nodes.pid


def clear(tenant: Tenant) -> None:
    """Delete the Jobs and pods of a run, and wait until the API server is at rest."""
    deadline = time.monotonic() + REST_MAX_S
    pods_path = f"/api/v1/namespaces/{tenant.namespace}/pods"
    with tenant.plane.client() as admin:
        admin.delete(f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs", params={"propagationPolicy": "Orphan"})
        while admin.get(pods_path, params={"limit": 1}).json()["items"] and time.monotonic() < deadline:
            with suppress(httpx.TransportError):  # The deletion of thousands of pods may take longer than the timeout.
                admin.delete(pods_path, params={"gracePeriodSeconds": 0}, timeout=REST_MAX_S)
    while time.monotonic() < deadline:
        used = cpu_s(tenant.plane)
        time.sleep(1)
        if cpu_s(tenant.plane) - used < REST_CPU:
            return


async def run_all(work: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """Do the work for all items, at most `WRITES_IN_FLIGHT` at a time."""
    rest = iter(items)

    async def worker() -> None:
        for one in rest:
            await work(one)

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITES_IN_FLIGHT):
            group.create_task(worker())


async def watched_objects(
    client: Client, resource: Resource, namespace: str, since: str, **options: Any
) -> AsyncIterator[Json]:
    """Yield each object that is created or changed after the resource version `since`, without end."""
    version = since
    while True:
        watch = client.watch(resource, namespace, resource_version=version, **options)
        async with aclosing(watch):
            async for lines in watch:
                for event in map(json.loads, lines.splitlines()):
                    if event["type"] in {"ADDED", "MODIFIED"}:
                        version = event["object"]["metadata"]["resourceVersion"]
                        yield event["object"]


async def write_gangs(tenant: Tenant, names: Iterable[str]) -> dict[str, str]:
    """Write running gangs of one pod, and return the uid of each Job by its name."""
    uids: dict[str, str] = {}
    namespace = tenant.namespace

    async def write(name: str) -> None:
        job = await client.create(JOBS, job_manifest(name, 1), namespace)
        uids[name] = job["metadata"]["uid"]
        status = {"active": 1, "ready": 1, "startTime": now(), "uncountedTerminatedPods": {}}
        await client.patch(JOBS, name, namespace, {"status": status}, subresource="status")
        await client.create(PODS, pod_manifest(job), namespace)
        await client.patch(PODS, f"{name}-0", namespace, running(), subresource="status")

    async with Client(admin_config(tenant.plane, namespace)) as client:
        await run_all(write, names)
    return uids


async def end_pod(client: Client, namespace: str, name: str) -> None:
    """Write that the gang's pod has succeeded."""
    await client.patch(PODS, f"{name}-0", namespace, succeeded(), subresource="status")


async def complete(client: Client, namespace: str, name: str) -> None:
    """Write that the Job is complete, as the last write of the Job controller."""
    at = now()
    conditions = [
        {"type": kind, "status": "True", "reason": "CompletionsReached", "lastTransitionTime": at, "lastProbeTime": at}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    status = {
        "active": 0,
        "ready": 0,
        "succeeded": 1,
        "terminating": 0,
        "completedIndexes": "0",
        "completionTime": at,
        "conditions": conditions,
    }
    await client.patch(JOBS, name, namespace, {"status": status}, patch_type=PatchType.MERGE, subresource="status")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def job_manifest(name: str, pods: int, *, held: bool = True, labels: Json | None = None) -> Json:
    """Return an Indexed Job as the provider submits it. With `held`, its pods have the finalizer of the provider."""
    labels = labels or {LABEL_GANG: name, LABEL_ATTEMPT: "1"}
    meta = {"labels": labels} | ({"finalizers": [FINALIZER_HARVEST]} if held else {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": meta, "spec": _pod_spec()},
        },
    }


def _pod_spec() -> Json:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "command": ["python", "train.py"],
        "env": [{"name": f"SETTING_{number}", "value": "x" * 20} for number in range(10)],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}


def pod_manifest(job: Json) -> Json:
    """Return the pod of a Job of one pod as the Job controller creates it, already bound to a node."""
    name, template = job["metadata"]["name"], job["spec"]["template"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
    meta = {
        "name": f"{name}-0",
        "labels": {**template["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": "0"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "finalizers": template["metadata"].get("finalizers", []),
        "ownerReferences": [owner],
    }
    spec = {**_pod_spec(), "nodeName": "hollow-0"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def running() -> Json:
    """Return the status patch that a kubelet sends when the container has started."""
    return _status("Running", {"running": {"startedAt": now()}}, ready=True)


def succeeded(message: str = "") -> Json:
    """Return the status patch that a kubelet sends when the container has succeeded."""
    at = now()
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at, "message": message}
    return _status("Succeeded", {"terminated": ended}, ready=False)


def _status(phase: str, state: Json, *, ready: bool) -> Json:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "imageID": "",
        "ready": ready,
        "restartCount": 0,
        "state": state,
    }
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    truth = {True: "True", False: "False"}
    conditions = [
        {"type": kind, "status": truth[ready or kind in ("Initialized", "PodScheduled")], "lastTransitionTime": now()}
        for kind in kinds
    ]
    return {
        "status": {
            "phase": phase,
            "hostIP": "10.0.0.1",
            "podIP": "10.1.0.1",
            "startTime": now(),
            "conditions": conditions,
            "containerStatuses": [container],
        }
    }
