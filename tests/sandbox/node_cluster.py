"""An API server and nodes that run real pods, without scheduler and controllers. Tests bind pods themselves."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.api import create_app, serving
from gangjobs_sandbox.node.client import ApiClient
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.network import PodNetwork
from gangjobs_sandbox.node.node import Node
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import EVENTS, NODES, PODS
from tests.timeouts import TIMEOUT_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKEN = "secret"


@dataclass
class NodeCluster:
    """Access to the stored objects and to the nodes for a test."""

    registry: Registry
    url: str
    nodes: list[Node] = field(default_factory=list)

    def create(self, pod: dict[str, Any], node: str = "node-1") -> str:
        """Store a pod that is bound to a node. Returns its name."""
        pod["metadata"].pop("uid", None)
        pod["spec"].setdefault("nodeName", node)
        self.registry.create(PODS, pod)
        return str(pod["metadata"]["name"])

    def pod(self, name: str) -> dict[str, Any]:
        return self.registry.get(PODS, name, "default")

    def exists(self, name: str) -> bool:
        return self.registry.find(PODS, "default", name) is not None

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.pod(name)["status"]
        return found

    def state(self, name: str, container: str = "main") -> dict[str, Any]:
        """Return the current state of a container, or `{}` before the node has reported one."""
        return self.container(name, container).get("state") or {}

    def container(self, name: str, container: str = "main") -> dict[str, Any]:
        status = self.status(name)
        every = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
        return next((item for item in every if item["name"] == container), {})

    def events(self, name: str) -> list[tuple[str, str]]:
        found = self.registry.list(EVENTS, "default")
        return [(item["reason"], item["message"]) for item in found if item["involvedObject"]["name"] == name]

    async def phase(self, name: str, *phases: str) -> dict[str, Any]:
        """Wait for one of the phases. Returns the status."""
        await until(lambda: self.status(name)["phase"] in phases, what=f"{name} in {phases}")
        return self.status(name)

    async def ended(self, name: str) -> dict[str, Any]:
        return await self.phase(name, "Succeeded", "Failed")

    async def wait_for_reason(self, name: str, reason: str, container: str = "main") -> str:
        """Wait until the container waits for this reason. Returns the message."""

        def waiting() -> dict[str, Any]:
            found: dict[str, Any] = self.state(name, container).get("waiting") or {}
            return found

        await until(lambda: waiting().get("reason") == reason and waiting().get("message"), what=f"waiting: {reason}")
        return str(waiting()["message"])

    async def wait_until_removed(self, name: str) -> None:
        await until(lambda: not self.exists(name), what=f"{name} gone")

    async def wait_for_output(self, name: str, text: str, container: str = "main") -> None:
        """Wait until the output of the container is exactly this text."""

        async def has_written() -> bool:
            started = "running" in self.state(name, container)
            return started and await self.log(name, container) == text

        async with asyncio.timeout(TIMEOUT_S):
            while not await has_written():  # noqa: ASYNC110 - the container is another process
                await asyncio.sleep(0.02)

    async def log(self, name: str, container: str = "main", **options: Any) -> str:
        node = next(node for node in self.nodes if node.get_worker("default", name))
        return b"".join([piece async for piece in node.logs.open("default", name, container, **options)]).decode()


@asynccontextmanager
async def api_server(registry: Registry | None = None) -> AsyncIterator[NodeCluster]:
    found = registry or Registry()
    async with serving(create_app(found, token=TOKEN)) as address:
        yield NodeCluster(found, address.url)


@asynccontextmanager
async def running_node(cluster: NodeCluster, client: ApiClient, node: Node) -> AsyncIterator[Node]:
    """Run a registered node. It is cancelled and awaited at the end."""
    task = asyncio.create_task(node.run())
    cluster.nodes.append(node)
    try:
        await until(lambda: node.registered.is_set() or task.done(), what="registration")
        if task.done():
            await task
        yield node
    finally:
        cluster.nodes.remove(node)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def node_cluster(
    folder: Path, *, nodes: int = 1, registry: Registry | None = None, **config: Any
) -> AsyncIterator[NodeCluster]:
    """Run an API server and the nodes `node-1`, `node-2` ... with a shared network."""
    settings = {"retry_s": 0.05, "crash_backoff_s": 0.05, **config}
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(api_server(registry))
        client = await stack.enter_async_context(ApiClient(cluster.url, token=TOKEN))
        network = PodNetwork(str(folder))
        for number in range(1, nodes + 1):
            name = f"node-{number}"
            node = Node(NodeConfig(name=name, root_dir=folder / name, **settings), client, network=network)
            await stack.enter_async_context(running_node(cluster, client, node))
        assert len(cluster.registry.list(NODES)) == nodes
        yield cluster
