"""A node: joins a cluster as an ordinary API client and runs the pods bound to it as local processes.

It serves an embedded API server and a real one alike. Everything it keeps is in `root_dir`; what an earlier
node of the same name left there is adopted or cleaned up.
"""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import SystemClock

from .admission import Admission
from .client import core_path
from .isolation import Probed, probe
from .log_server import serving_logs
from .logs import LogOptions, read_log
from .network import PodNetwork
from .pod import PodHost, PodWorker
from .pod_folder import PodFolder, pod_folders
from .process import ContainerProcess
from .recorder import WARNING, Recorder
from .registration import Registration
from .shim.spec import LOG_FILE
from .watch import Changed, Listed, follow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gangjobs_sandbox.clock import Clock

    from .client import ApiClient
    from .config import NodeConfig

__all__ = ["Node", "NodeLogs"]

_log = logging.getLogger(__name__)
_STARTS_AT_ONCE = max(2, os.cpu_count() or 2)
"""How many containers start side by side: starting one keeps a core busy, so more would only slow each other down."""
_RESOLVER_LIMITS = "options timeout:1 attempts:1"
"""A name of a pod that does not exist yet must not keep a program waiting for the machine's name server."""


class Node:
    """One node. `run` it; cancel that to stop it."""

    def __init__(
        self, config: NodeConfig, client: ApiClient, *, network: PodNetwork | None = None, clock: Clock | None = None
    ) -> None:
        """Nodes that share a `network` see each other's pods by address and name."""
        now = (clock or SystemClock()).now
        self.config = config
        self.registered = asyncio.Event()
        """Set when the Node object says that the node is ready."""
        self.logs = NodeLogs(self)
        self._client = client
        self._network = network or PodNetwork(str(config.root_dir))
        self._admission = Admission(config.allocatable())
        self._recorder = Recorder(client, config.name, now)
        self._registration = Registration(config, client, now)
        self._workers: dict[str, PodWorker] = {}
        self._host: PodHost | None = None

    async def run(self) -> None:
        """Join the cluster and run pods until cancelled; nothing of them is left then, unless they outlive the node."""
        self.config.root_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        probed = await self._probe()
        _log.info("node %s isolates containers by %s %s", self.config.name, probed.isolation, probed.reason)
        self._host = self._make_host(probed)
        async with (
            self._network.following(self._client),
            serving_logs(self.config, self.logs) as log_port,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._recorder.run(), name=f"events of node {self.config.name}")
            await self._registration.register(probed, log_port)
            self.registered.set()
            group.create_task(self._registration.renew(), name=f"heartbeat of node {self.config.name}")
            await self._follow_pods(self._host, group)

    def worker_of(self, namespace: str, name: str) -> PodWorker | None:
        """The pod of this name on this node."""
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if metadata["name"] == name and metadata["namespace"] == namespace:
                return worker
        return None

    def statistics(self) -> dict[str, Any]:
        """Counts for people and tests: pods by state, requests admitted, events dropped."""
        finished = sum(worker.finished for worker in self._workers.values())
        return {
            "pods": len(self._workers),
            "finished": finished,
            "used": self._admission.used(),
            "events_dropped": self._recorder.dropped,
        }

    async def _probe(self) -> Probed:
        if self.config.isolation is not None:
            return Probed(self.config.isolation, "chosen by configuration")
        return await probe(self.config.root_dir / "probe")

    def _make_host(self, probed: Probed) -> PodHost:
        return PodHost(
            config=self.config,
            client=self._client,
            network=self._network,
            admission=self._admission,
            recorder=self._recorder,
            isolation=probed.isolation,
            start_slots=asyncio.Semaphore(_STARTS_AT_ONCE),
            resolver_config=_resolver_config(self.config.root_dir),
        )

    async def _follow_pods(self, host: PodHost, group: asyncio.TaskGroup) -> None:
        selector = {"fieldSelector": f"spec.nodeName={self.config.name}"}
        is_first = True
        async for change in follow(self._client, core_path("pods"), selector):
            if isinstance(change, Changed):
                self._apply(change.kind, change.item, host, group)
                continue
            if is_first:
                await self._clean_up(change)
                is_first = False
            listed = {pod["metadata"]["uid"] for pod in change.items}
            for uid in self._workers.keys() - listed:
                self._workers[uid].remove()
            for pod in change.items:
                self._apply("MODIFIED", pod, host, group)

    def _apply(self, kind: str, pod: dict[str, Any], host: PodHost, group: asyncio.TaskGroup) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if kind == "DELETED":
            if worker:
                worker.remove()
            return
        if worker is None:
            worker = self._workers[uid] = PodWorker(pod, host)
            group.create_task(self._run_worker(worker), name=f"pod {pod['metadata']['name']}")
        worker.update(pod)

    async def _run_worker(self, worker: PodWorker) -> None:
        """A pod that cannot be run because of a fault in this program must not take the others with it."""
        try:
            await worker.run()
        except Exception as error:
            _log.exception("pod %s is not looked after any more", worker.pod["metadata"]["name"])
            worker.event(WARNING, "FailedSync", f"the node failed: {type(error).__name__}: {error}")
        finally:
            self._workers.pop(worker.folder.uid, None)

    async def _clean_up(self, listed: Listed) -> None:
        """End and remove what an earlier node has left of pods that are not here any more."""
        known = {pod["metadata"]["uid"] for pod in listed.items}
        strangers = [folder for folder in pod_folders(self.config.root_dir) if folder.uid not in known]
        await asyncio.gather(*(_discard(folder) for folder in strangers))


class NodeLogs:
    """Logs of the pods of one node; a `LogSource` for an API server's `log` subresource."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def open(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
        limit_bytes: int | None = None,
        previous: bool = False,
    ) -> AsyncIterator[bytes]:
        """The log of one run of a container, the current or the one before.

        Raises:
            LookupError: at the first step; the pod is not on this node, or the container has not run.
        """
        worker = self._node.worker_of(namespace, pod)
        if worker is None:
            raise LookupError(f'pod "{pod}" not found on node {self._node.config.name}')
        latest = worker.folder.latest_run(container)
        run = latest if not previous else latest - 1 if latest else None
        if run is None:
            raise LookupError(f'{"previous terminated " if previous else ""}container "{container}" not found')
        since = datetime.now(UTC) - timedelta(seconds=since_seconds) if since_seconds is not None else None
        options = LogOptions(follow, tail_lines, since, timestamps, limit_bytes)
        path = str(worker.folder.run(container, run) / LOG_FILE)
        async for piece in read_log(path, options, ended=lambda: worker.has_ended(container, run)):
            yield piece


async def _discard(folder: PodFolder) -> None:
    for run in folder.runs():
        process = ContainerProcess.adopt(str(run))
        process.kill()
        await process.wait()
    await asyncio.to_thread(folder.remove)


def _resolver_config(root: Path) -> str:
    """The machine's resolver configuration with short timeouts, as a file; empty if it has none."""
    try:
        text = Path("/etc/resolv.conf").read_text()
    except OSError:
        return ""
    path = root / "resolv.conf"
    path.write_text(f"{text.rstrip()}\n{_RESOLVER_LIMITS}\n")
    return os.fspath(path)
