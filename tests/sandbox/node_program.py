"""Runs a node in its own process, for tests that kill it: `python node_program.py URL TOKEN FOLDER [outlive]`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gangjobs_sandbox.node.client import ApiClient
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.node import Node


async def main(url: str, token: str, folder: str, *options: str) -> None:
    config = NodeConfig(name="node-1", root_dir=Path(folder), retry_s=0.05, outlive_node="outlive" in options)
    async with ApiClient(url, token=token) as client:
        await Node(config, client).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
