"""Nodes that serve generated logs, and do nothing else of a kubelet.

`python -m benchmarks.log_nodes KUBECONFIG BYTES`: the log of a container has BYTES bytes. A log that is followed has a
new line each second, and never ends.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from benchmarks.hollow_nodes import HollowNodes
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.log_server import serving_logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NODES = 10
LINE = b"step %015d: " + b"x" * 71 + b"\n"
LINES = 700
"""The number of lines in one piece of a response, which has about 64 KiB."""


class GeneratedLogs:
    """Logs that are generated when they are read, so that no disk is measured."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def open(
        self, namespace: str, pod: str, container: str, *, follow: bool, **_options: object
    ) -> AsyncIterator[bytes]:
        number = 0
        while follow:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            yield f"{stamp} step {number} of {pod}\n".encode()
            number += 1
            await asyncio.sleep(1)
        left = self._size
        while left:
            block = b"".join(LINE % (number + line) for line in range(LINES))[:left]
            number += LINES
            left -= len(block)
            yield block


async def main(kubeconfig: str, size: int) -> None:
    config = ClusterConfig.from_extras("nodes", {"kube_config_path": kubeconfig})
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(config))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="log-nodes-")))
        node = NodeConfig("logs", folder, log_port=0)
        port = await stack.enter_async_context(serving_logs(node, GeneratedLogs(size)))
        await HollowNodes(client, [f"hollow-{number}" for number in range(NODES)], log_port=port).join()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
