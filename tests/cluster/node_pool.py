"""Nodes of the sandbox on a real control plane. They run pods as local processes, without a container runtime."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gangjobs_sandbox.node.client import ApiClient
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.network import PodNetwork
from gangjobs_sandbox.node.node import Node
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane


@dataclass
class NodePool:
    """Nodes on their own event loop, so that they do not wait for the loop of a test."""

    nodes: list[Node]

    @classmethod
    @contextmanager
    def running(cls, plane: ControlPlane, *, nodes: int, cpu: int) -> Iterator[Self]:
        """Run the nodes `node-0`, `node-1` ... while the block runs. All of their processes end with the block."""
        folder = Path(tempfile.mkdtemp(prefix="nodes-"))
        started: Future[list[Node]] = Future()
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()
        kubeconfig = plane.folder / "admin.kubeconfig"
        main = _run(kubeconfig, folder, nodes, cpu, started, stop)
        thread = threading.Thread(target=loop.run_until_complete, args=(main,), name="node-pool", daemon=True)
        thread.start()
        try:
            yield cls(started.result(TIMEOUT_S))
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()
            shutil.rmtree(folder, ignore_errors=True)


async def _run(
    kubeconfig: Path, folder: Path, count: int, cpu: int, started: Future[list[Node]], stop: asyncio.Event
) -> None:
    try:
        async with ApiClient.from_kubeconfig(kubeconfig) as client, asyncio.TaskGroup() as group:
            network = PodNetwork(str(folder))
            nodes = [
                Node(
                    NodeConfig(f"node-{number}", folder / f"node-{number}", cpu=cpu, log_port=0),
                    client,
                    network=network,
                )
                for number in range(count)
            ]
            tasks = [group.create_task(node.run()) for node in nodes]
            await asyncio.gather(*(node.registered.wait() for node in nodes))
            started.set_result(nodes)
            await stop.wait()
            for task in tasks:
                task.cancel()
    except BaseException as error:
        if not started.done():
            started.set_exception(error)
        raise
