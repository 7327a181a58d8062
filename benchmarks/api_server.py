"""A real API server for benchmarks, and the objects of gangs that benchmarks write to it.

By default no controller, scheduler or node runs, so a benchmark measures the client and the API server only, and the
state is exactly what the benchmark wrote.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import msgspec
import psutil

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import ClusterError, Gone
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.render.job_manifest import render_job
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from benchmarks.harness import process, with_progress
from gangjobs_sandbox.node.pod_state import ContainerState, Kind, PodState, Terminated
from gangjobs_sandbox.node.status import pod_status
from tests.cluster.control_plane import ControlPlane
from tests.cluster.controlplane.build import binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from airflow_provider_gangjobs.kube.resources import Resource
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
def control_plane(release: str = RELEASE, *, kind: type[ControlPlane] = ControlPlane) -> Iterator[ControlPlane]:
    """Run a real API server with controllers and scheduler during the block. `make clusters` builds them."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        plane = kind(release, binary(release), Path(folder))
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()


def api_server() -> AbstractContextManager[ControlPlane]:
    """Run a real API server during the block."""
    return control_plane(kind=ApiServerOnly)


def allow_all(tenant: Tenant) -> None:
    """Allow the account everything. The peer needs permissions that our Role does not have (`jobs/status`)."""
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    tenant.grant_everywhere({"metadata": {"name": "peer"}, "rules": [rule]})


def admin_config(plane: ControlPlane, namespace: str) -> ClusterConfig:
    """Return the config of the administrator, which writes what controllers and kubelets would write."""
    kubeconfig = str(plane.folder / "admin.kubeconfig")
    return ClusterConfig.from_extras("admin", {"kube_config_path": kubeconfig, "namespace": namespace})


def airflow_environment(extras: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with the Airflow connection of these extras, for either provider."""
    return {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes", "extra": extras}),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    }


def cpu_s(plane: ControlPlane) -> float:
    """Return the CPU seconds that the API server has used."""
    used = psutil.Process(plane.pids()["kube-apiserver"]).cpu_times()
    return float(used.user + used.system)


def requests_of(tenant: Tenant, since: datetime, until: datetime) -> int:
    """Return the number of the tenant's requests that ended in this time, by the API server's audit log."""
    return sum(since <= datetime.fromisoformat(event["stageTimestamp"]) <= until for event in tenant.audited())


@contextmanager
def hollow_nodes(plane: ControlPlane, count: int, *, lasts_s: float = 0.0) -> Iterator[int]:
    """Run hollow nodes in a process of their own during the block, and yield the id of the process.

    :param lasts_s: How long each container runs, in seconds.
    """
    kubeconfig = str(plane.folder / "admin.kubeconfig")
    with process("benchmarks.hollow_nodes", kubeconfig, count, lasts_s) as nodes:
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


Decode = Callable[[bytes], Iterable[Json]]
"""Returns the events of a watch whose lines arrived together."""
_decode: Decode = msgspec.json.Decoder(Json).decode_lines


async def watched_objects(
    client: Client,
    resource: Resource,
    namespace: str | None,
    since: str,
    *,
    decode: Decode = _decode,
    **options: Any,
) -> AsyncIterator[Json]:
    """Yield each object that is created or changed after the resource version `since`, without end.

    If the server ends the watch, another watch shows the changes since then, or all objects again.
    """
    version = since
    while True:
        watch = client.watch(resource, namespace, resource_version=version, **options)
        try:
            async with aclosing(watch):
                async for lines in watch:
                    for event in decode(lines):
                        if event["type"] in {"ADDED", "MODIFIED"}:
                            version = event["object"]["metadata"]["resourceVersion"]
                            yield event["object"]
        except ClusterError as error:
            version = "0" if isinstance(error, Gone) else version


async def write_gangs(tenant: Tenant, count: int) -> dict[str, str]:
    """Write running gangs of one pod, and return the uid of each Job by its name."""
    uids: dict[str, str] = {}
    namespace = tenant.namespace

    async def write(number: int) -> None:
        job = await client.create(JOBS, gang_job(f"run-{number}", namespace), namespace)
        name = job["metadata"]["name"]
        uids[name] = job["metadata"]["uid"]
        status = {"active": 1, "ready": 1, "startTime": now(), "uncountedTerminatedPods": {}}
        await client.patch(JOBS, name, namespace, {"status": status}, subresource="status")
        await client.create(PODS, pod_manifest(job), namespace)
        await client.patch(PODS, f"{name}-0", namespace, running(datetime.now(UTC)), subresource="status")

    async with Client(admin_config(tenant.plane, namespace)) as client:
        await run_all(write, with_progress(count, "written"))
    return uids


async def end_pod(client: Client, namespace: str, name: str) -> None:
    """Write that the gang's pod has succeeded."""
    await client.patch(PODS, f"{name}-0", namespace, succeeded(datetime.now(UTC)), subresource="status")


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
    await client.patch(JOBS, name, namespace, {"status": status}, patch_type="merge", subresource="status")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def gang_spec(workers: int, **parameters: Any) -> GangSpec:
    """Return the spec of a gang without a scheduler of gangs."""
    given: Json = {"resources": {"cpu": "10m"}, "gang": "off", **parameters}
    return GangSpec(
        image="registry.example/train:1",
        command=["python", "train.py"],
        env={f"SETTING_{number}": "x" * 20 for number in range(10)},
        workers=workers,
        rendezvous=False,
        termination_grace_s=1,
        **given,
    )


def gang_job(run: str | TaskKey, namespace: str, workers: int = 1, **parameters: Any) -> Json:
    """Return the Job that the provider submits for a task, or for a run of the task `train`. It is not suspended."""
    key = TaskKey("bench", run, "train") if isinstance(run, str) else run
    attempt = build_attempt(key, Claim("benchmark"), namespace=namespace, number=0)
    job = render_job(gang_spec(workers, **parameters), attempt, PlacementDecision(Placement.OFF))
    job["spec"]["suspend"] = False
    return job


def pod_manifest(job: Json) -> Json:
    """Return the pod of a Job of one pod as the Job controller creates it, already bound to a node."""
    name, template, index = job["metadata"]["name"], job["spec"]["template"], "batch.kubernetes.io/job-completion-index"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
    meta = {
        **template["metadata"],
        "name": f"{name}-0",
        "labels": {**template["metadata"]["labels"], index: "0"},
        "annotations": {**template["metadata"].get("annotations", {}), index: "0"},
        "ownerReferences": [owner],
    }
    spec = {**template["spec"], "nodeName": "hollow-0"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def running(started: datetime) -> Json:
    """Return the status patch that a kubelet sends when the container has started."""
    return _status(started, None)


def succeeded(started: datetime, message: str = "") -> Json:
    """Return the status patch that a kubelet sends when the container has succeeded, which started at this time."""
    return _status(started, Terminated(0, "Completed", datetime.now(UTC), started, message))


def _status(started: datetime, ended: Terminated | None) -> Json:
    main = ContainerState("main", "registry.example/train:1", Kind.MAIN, None)
    state = PodState([main], started, pod_ip="10.1.0.1", host_ip="10.0.0.1", network_ready=True)
    main.run(started, "", number=0, ready=True)
    if ended is not None:
        main.end(ended)
    return {"status": pod_status(state, "Never", ended.finished if ended else started)}
