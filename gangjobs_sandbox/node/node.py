"""A node: joins a cluster as an ordinary API client and runs the pods that are bound to it as local processes.

The node works with the embedded API server and with a real one. It keeps all data in `root_dir`. It adopts or cleans up
what an earlier node of the same name left there.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import SystemClock
from gangjobs_sandbox.node.admission import Admission
from gangjobs_sandbox.node.client import Changed, Listed, core_path, list_and_watch
from gangjobs_sandbox.node.isolation import IsolationProbe, probe
from gangjobs_sandbox.node.log_server import serving_logs
from gangjobs_sandbox.node.logs import LogOptions, read_log
from gangjobs_sandbox.node.network import PodNetwork
from gangjobs_sandbox.node.pod import PodHost, PodWorker
from gangjobs_sandbox.node.pod_folder import PodFolder, pod_folders
from gangjobs_sandbox.node.process import ContainerProcess
from gangjobs_sandbox.node.recorder import WARNING, Recorder
from gangjobs_sandbox.node.registration import Registration
from gangjobs_sandbox.node.shim.spec import LOG_FILE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from gangjobs_sandbox.apimachinery.quantity import ResourceList
    from gangjobs_sandbox.node.client import ApiClient
    from gangjobs_sandbox.node.config import NodeConfig

__all__ = ["Node", "NodeLogs"]

_log = logging.getLogger(__name__)
_CONCURRENT_STARTS_MAX = max(2, os.cpu_count() or 2)
"""The number of containers that start concurrently. A start keeps one core busy, so a higher number is not faster."""
_RESOLVER_LIMITS = "options timeout:1 attempts:1"
"""The look-up of a pod that does not exist yet must not block a program until the machine's name server times out."""


class Node:
    """One node. `run` starts it, and the cancellation of `run` stops it."""

    def __init__(self, config: NodeConfig, client: ApiClient, *, network: PodNetwork | None = None) -> None:
        """Create a node. Nodes that share a `network` reach each other's pods by address and by name."""
        now = SystemClock().now
        self.config = config
        self.registered = asyncio.Event()
        """Set when the Node object is ready."""
        self.has_ended = False
        """Whether `run` has ended. The containers may continue, but the node serves no log any more."""
        self.logs = NodeLogs(self)
        self._client = client
        self._network = network or PodNetwork(str(config.root_dir))
        self._admission = Admission(config.allocatable())
        self._recorder = Recorder(client, config.name, now)
        self._registration = Registration(config, client, now)
        self._workers: dict[str, PodWorker] = {}
        self._host: PodHost | None = None

    async def run(self) -> None:
        """Join the cluster and run pods until cancelled. The containers end too, unless `outlive_node` is set."""
        try:
            await self._run()
        finally:
            self.has_ended = True

    async def _run(self) -> None:
        self.config.root_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        probed = await self._probe()
        _log.info("node %s isolates containers by %s %s", self.config.name, probed.isolation, probed.reason)
        self._host = self._make_host(probed)
        async with (
            self._network.watching_services(self._client),
            serving_logs(self.config, self.logs) as log_port,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._recorder.run(), name=f"events of node {self.config.name}")
            await self._registration.register(probed, log_port)
            self.registered.set()
            group.create_task(self._registration.renew(), name=f"heartbeat of node {self.config.name}")
            await self._follow_pods(self._host, group)

    def get_worker(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of the pod, or None if the pod is not on this node."""
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if metadata["name"] == name and metadata["namespace"] == namespace:
                return worker
        return None

    def used_resources(self) -> ResourceList:
        """Return the sum of the requests of all admitted pods, which includes one unit of `pods` for each pod."""
        return self._admission.used()

    async def _probe(self) -> IsolationProbe:
        if self.config.isolation is not None:
            return IsolationProbe(self.config.isolation, "chosen by configuration")
        return await probe(self.config.root_dir / "probe")

    def _make_host(self, probed: IsolationProbe) -> PodHost:
        return PodHost(
            config=self.config,
            client=self._client,
            network=self._network,
            admission=self._admission,
            recorder=self._recorder,
            isolation=probed.isolation,
            start_slots=asyncio.Semaphore(_CONCURRENT_STARTS_MAX),
            resolver_config=_resolver_config(self.config.root_dir),
        )

    async def _follow_pods(self, host: PodHost, group: asyncio.TaskGroup) -> None:
        selector = {"fieldSelector": f"spec.nodeName={self.config.name}"}
        is_first = True
        async for change in list_and_watch(self._client, core_path("pods"), selector):
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
            # As in the kubelet, the resources of a pod that was deleted by force are free before its program ends.
            self._admission.release(uid)
            if worker:
                worker.remove()
            return
        if worker is None:
            worker = self._workers[uid] = PodWorker(pod, host)
            group.create_task(self._run_worker(worker), name=f"pod {pod['metadata']['name']}")
        worker.update(pod)

    async def _run_worker(self, worker: PodWorker) -> None:
        """Run a worker. A defect that stops one pod must not stop the other pods."""
        try:
            await worker.run()
        except Exception as error:
            _log.exception(
                "the worker of pod %s has failed, and the node no longer manages the pod",
                worker.pod["metadata"]["name"],
            )
            worker.event(WARNING, "FailedSync", f"the node failed: {type(error).__name__}: {error}")
        finally:
            self._workers.pop(worker.folder.uid, None)

    async def _clean_up(self, listed: Listed) -> None:
        """Stop and remove the containers of an earlier node whose pods are no longer bound to this node."""
        known = {pod["metadata"]["uid"] for pod in listed.items}
        orphaned = [folder for folder in pod_folders(self.config.root_dir) if folder.uid not in known]
        await asyncio.gather(*(_remove_leftovers(folder) for folder in orphaned))


class NodeLogs:
    """The logs of the pods of one node: a `LogSource` for the `log` subresource of an API server."""

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
        since: datetime | None = None,
        timestamps: bool = False,
        limit_bytes: int | None = None,
        previous: bool = False,
    ) -> AsyncIterator[bytes]:
        """Yield the log of the current or the previous run of a container. The end of the node ends the log.

        Raises:
            LookupError: the pod is not on this node, or the container has not run. The first iteration raises it.
        """
        node = self._node
        worker = node.get_worker(namespace, pod)
        if worker is None:
            raise LookupError(f'pod "{pod}" not found on node {node.config.name}')
        latest = worker.folder.latest_run(container)
        run = latest if not previous else latest - 1 if latest else None
        if run is None:
            raise LookupError(f'{"previous terminated " if previous else ""}container "{container}" not found')
        options = LogOptions(follow, tail_lines, since, timestamps, limit_bytes)
        path = str(worker.folder.run(container, run) / LOG_FILE)
        async for piece in read_log(path, options, ended=lambda: node.has_ended or worker.has_ended(container, run)):
            yield piece


async def _remove_leftovers(folder: PodFolder) -> None:
    for run in folder.runs():
        process = ContainerProcess.adopt(str(run))
        process.kill()
        await process.wait()
    await asyncio.to_thread(folder.remove)


def _resolver_config(root: Path) -> str:
    """Write the machine's resolver configuration with short timeouts to a file. Returns "" if the machine has none."""
    try:
        text = Path("/etc/resolv.conf").read_text()
    except OSError:
        return ""
    path = root / "resolv.conf"
    path.write_text(f"{text.rstrip()}\n{_RESOLVER_LIMITS}\n")
    return os.fspath(path)
