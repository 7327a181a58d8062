"""Hollow nodes, as kubemark calls them: one program writes the pod statuses of many kubelets, and runs no container.

A pod that is bound to a hollow node becomes Running, and Succeeded when the benchmark ends it. A pod that is deleted
ends and is then removed.

`python -m benchmarks.hollow_nodes KUBECONFIG NODES SECONDS`: pods end after this many seconds. The nodes serve their
logs to the API server.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import defaultdict
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import NotFound
from airflow_provider_gangjobs.kube.resources import NODES, PODS
from benchmarks.api_server import Json, run_all, running, succeeded, watched_objects
from benchmarks.harness import print_json
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.log_server import serving_logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WRITERS = 12
RESULT = '{"accuracy": 0.98}'
LOG = b"2026-01-01T00:00:00.000000000Z step 1\n2026-01-01T00:00:01.000000000Z step 2\n"
LOG_HOST = "127.0.0.1"
CAPACITY = {"cpu": "256", "memory": "1Ti", "pods": "2000"}


class _Logs:
    """Logs that have the same two lines for every container. The lines begin with times, which the clients request."""

    def __init__(self) -> None:
        self.ends: defaultdict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)
        """Whether the pods have ended, by namespace and name. A response that follows a log ends with the pod."""

    async def open(
        self, namespace: str, pod: str, container: str, *, follow: bool = False, **_options: object
    ) -> AsyncIterator[bytes]:
        yield LOG
        if follow:
            await self.ends[namespace, pod].wait()


@dataclass
class HollowNodes:
    """The kubelets of the nodes with these names."""

    client: Client
    names: list[str]
    log_port: int
    """The port on which all nodes serve logs."""
    logs: _Logs
    lasts_s: float
    """How long each container runs, in seconds."""
    _seen: set[str] = field(default_factory=set)
    """The pods that have been started."""
    _ended: set[str] = field(default_factory=set)
    """The pods that end or have ended, and are not removed yet."""
    _writing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WRITERS))

    async def join(self) -> None:
        """Create the nodes, which are ready and have room."""
        await run_all(self._join, self.names)

    async def _join(self, name: str) -> None:
        await self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "hollow"}
        status = {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": LOG_HOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.log_port}},
        }
        await self.client.patch(NODES, name, None, {"status": status}, subresource="status")
        await self.client.patch(NODES, name, None, {"spec": {"taints": None}})

    async def run(self) -> None:
        """Write the statuses of the pods until cancelled. Pods that no longer exist are ignored."""
        watched = watched_objects(self.client, PODS, None, "0", field_selector="spec.nodeName!=")
        async with asyncio.TaskGroup() as group, aclosing(watched):
            async for pod in watched:
                self._handle(pod["metadata"], group)

    def _handle(self, meta: Json, group: asyncio.TaskGroup) -> None:
        if meta["uid"] not in self._seen:
            self._seen.add(meta["uid"])
            group.create_task(self._run_pod(meta))
        elif "deletionTimestamp" in meta and meta["uid"] in self._ended:
            self._ended.remove(meta["uid"])
            group.create_task(self._remove(meta))

    async def _run_pod(self, meta: Json) -> None:
        with suppress(NotFound):
            started = datetime.now(UTC)
            await self._patch_status(meta, running(started))
            await asyncio.sleep(self.lasts_s)
            self._ended.add(meta["uid"])
            self.logs.ends[meta["namespace"], meta["name"]].set()
            await self._patch_status(meta, succeeded(started, RESULT))

    async def _remove(self, meta: Json) -> None:
        with suppress(NotFound):
            async with self._writing:
                await self.client.delete(PODS, meta["name"], meta["namespace"], grace_period_s=0)

    async def _patch_status(self, meta: Json, body: dict[str, Any]) -> None:
        async with self._writing:
            await self.client.patch(
                PODS,
                meta["name"],
                meta["namespace"],
                body,
                subresource="status",
                returns_metadata=True,
            )


async def main(kubeconfig: str, count: int, lasts_s: float) -> None:
    config, logs = ClusterConfig.from_extras("hollow", {"kube_config_path": kubeconfig}), _Logs()
    with tempfile.TemporaryDirectory(prefix="hollow-") as folder:
        server = serving_logs(NodeConfig("hollow", Path(folder), log_port=0), logs)
        async with Client(config) as client, server as port:
            nodes = HollowNodes(client, [f"hollow-{number}" for number in range(count)], port, logs, lasts_s)
            await nodes.join()
            print_json(ready=True)
            await nodes.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
