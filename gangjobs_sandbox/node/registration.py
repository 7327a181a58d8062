"""Registers the node: creates the Node object, and renews its Lease and its status."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import __version__
from gangjobs_sandbox.clock import micro_time, timestamp
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import MERGE, ApiClient, UnreachableError, core_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from gangjobs_sandbox.node.config import NodeConfig
    from gangjobs_sandbox.node.isolation import IsolationProbe

__all__ = ["HOST_IP", "ISOLATION_ANNOTATION", "Registration"]

_log = logging.getLogger(__name__)
HOST_IP = "127.0.0.1"
ISOLATION_ANNOTATION = "gangjobs.airflow/isolation"
ISOLATION_REASON_ANNOTATION = "gangjobs.airflow/isolation-reason"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_RENEWALS = 4
"""The duration of the Lease, in renewal intervals, as for a kubelet."""
_NOT_READY_TAINT = "node.kubernetes.io/not-ready"
_CONDITIONS = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


class Registration:
    """Keeps one node registered."""

    def __init__(self, config: NodeConfig, client: ApiClient, now: Callable[[], datetime]) -> None:
        self._config = config
        self._client = client
        self._now = now
        self._ready_since = timestamp(now())
        self._node = core_path("nodes", config.name)

    async def register(self, probe: IsolationProbe, log_port: int | None = None) -> None:
        """Create or adopt the Node of this name and set its Ready condition. Retries until it succeeds."""
        while True:
            try:
                await self._register(probe, log_port)
                return
            except (UnreachableError, StatusError) as error:
                _log.warning(
                    "node %s cannot register, next try in %s s: %s", self._config.name, self._config.retry_s, error
                )
                await asyncio.sleep(self._config.retry_s)

    async def renew(self) -> None:
        """Renew the Lease, and at longer intervals the status, until cancelled."""
        renewals = max(1, round(self._config.status_interval_s / self._config.lease_renewal_s))
        count = 0
        while True:
            try:
                await self._renew_lease()
                if count % renewals == 0:
                    await self._client.patch(f"{self._node}/status", {"status": self._status(None)})
            except (UnreachableError, StatusError) as error:
                _log.debug("heartbeat of node %s failed: %s", self._config.name, error)
            count += 1
            await asyncio.sleep(self._config.lease_renewal_s)

    async def _register(self, probe: IsolationProbe, log_port: int | None) -> None:
        body = self._object(probe)
        try:
            await self._client.create(core_path("nodes"), body)
        except StatusError as error:
            if error.code != 409:
                raise
            await self._client.patch(self._node, {"metadata": body["metadata"]}, MERGE)
        stored = await self._client.patch(f"{self._node}/status", {"status": self._status(log_port)})
        taints = stored["spec"].get("taints") or []
        kept = [taint for taint in taints if taint["key"] != _NOT_READY_TAINT]
        if kept != taints:
            # Admission taints every new node. The controller that removes the taint may not run in this cluster.
            await self._client.patch(self._node, {"spec": {"taints": kept or None}}, MERGE)

    def _object(self, probe: IsolationProbe) -> dict[str, Any]:
        config = self._config
        labels = {
            "kubernetes.io/hostname": config.name,
            "kubernetes.io/os": platform.system().lower(),
            "kubernetes.io/arch": _architecture(),
            **config.labels,
        }
        annotations = {
            ISOLATION_ANNOTATION: probe.isolation.value,
            ISOLATION_REASON_ANNOTATION: probe.reason or None,
        }
        metadata = {"name": config.name, "labels": labels, "annotations": {k: v for k, v in annotations.items() if v}}
        return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {}}

    def _status(self, log_port: int | None) -> dict[str, Any]:
        now, capacity = timestamp(self._now()), self._config.capacity()
        status: dict[str, Any] = {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": HOST_IP},
                {"type": "Hostname", "address": self._config.name},
            ],
            "conditions": [
                {
                    "type": kind,
                    "status": value,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": self._ready_since,
                }
                for kind, (value, reason, message) in _CONDITIONS.items()
            ],
            "nodeInfo": _node_info(),
        }
        if log_port is not None:
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": log_port}}
        return status

    async def _renew_lease(self) -> None:
        spec = {
            "holderIdentity": self._config.name,
            "leaseDurationSeconds": max(1, round(self._config.lease_renewal_s * _LEASE_RENEWALS)),
            "renewTime": micro_time(self._now()),
        }
        try:
            await self._client.patch(f"{_LEASES}/{self._config.name}", {"spec": spec}, MERGE)
        except StatusError as error:
            if error.code != 404:
                raise
            metadata = {"name": self._config.name, "namespace": "kube-node-lease"}
            lease = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": spec}
            await self._client.create(_LEASES, lease)


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _node_info() -> dict[str, str]:
    version = f"v{__version__}"
    return {
        "operatingSystem": platform.system().lower(),
        "architecture": _architecture(),
        "kernelVersion": platform.release(),
        "osImage": f"{platform.system()} {platform.release()}",
        "containerRuntimeVersion": f"process://{__version__}",
        "kubeletVersion": version,
        "kubeProxyVersion": "",
        "machineID": platform.node(),
        "systemUUID": "",
        "bootID": str(os.getpid()),
    }
