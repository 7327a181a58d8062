"""The end or the kill of a node: what remains, and how the next node continues."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.api import create_app, serving
from gangjobs_sandbox.node.client import ApiClient
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.node import Node
from gangjobs_sandbox.resources import NODES, PODS
from tests.sandbox.node_builders import container, pod
from tests.sandbox.node_cluster import TOKEN, NodeCluster, api_server, running_node
from tests.sandbox.node_processes import processes_with, unique_sleep_s
from tests.timeouts import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]
PROGRAM = Path(__file__).with_name("node_program.py")
SPAWNS = "(setsid sh -c 'setsid sleep {0} & sleep {0}' &); echo up; exec sleep {0}"


@pytest.fixture
def marker() -> str:
    return str(unique_sleep_s())


@contextmanager
def node_process(cluster: NodeCluster, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(PROGRAM), cluster.url, TOKEN, str(folder), *options])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def sleeper(marker: str, **fields: Any) -> dict[str, Any]:
    return pod(container("/bin/sh", "-c", SPAWNS.format(marker)), **fields)


async def running(cluster: NodeCluster, marker: str) -> None:
    """Return whether main process, child and grandchild live. The last two have their own sessions."""
    await cluster.phase("train-0", "Running")
    await until(lambda: len([line for line in processes_with(marker) if line.startswith("sleep")]) == 3)


def next_node(folder: Path, client: ApiClient) -> Node:
    return Node(NodeConfig(name="node-1", root_dir=folder, retry_s=0.05), client)


async def test_killed_node_leaves_no_process(marker: str, tmp_path: Path) -> None:
    async with api_server() as cluster:
        cluster.create(sleeper(marker))
        with node_process(cluster, tmp_path) as node:
            await running(cluster, marker)
            node.kill()
            await until(lambda: not processes_with(marker), what="end of all descendants")


async def test_next_node_reports_containers_that_died_with_the_last(marker: str, tmp_path: Path) -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        name = cluster.create(sleeper(marker))
        with node_process(cluster, tmp_path):
            await running(cluster, marker)
        async with running_node(cluster, client, next_node(tmp_path, client)):
            assert (await cluster.ended(name))["phase"] == "Failed"
            terminated = cluster.state(name)["terminated"]
            assert (terminated["exitCode"], terminated["reason"]) == (137, "Error")
            assert terminated["message"] == "the node program ended while the container was running"
            assert await cluster.log(name) == "up\n"


async def test_next_node_reports_containers_that_ended_meanwhile(tmp_path: Path) -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        go = tmp_path / "go"
        name = cluster.create(pod(container("/bin/sh", "-c", f"while ! test -f {go}; do sleep 0.05; done; exit 6")))
        with node_process(cluster, tmp_path / "node", "outlive"):
            await cluster.phase(name, "Running")
        go.touch()
        async with running_node(cluster, client, next_node(tmp_path / "node", client)):
            assert (await cluster.ended(name))["phase"] == "Failed"
            assert cluster.state(name)["terminated"]["exitCode"] == 6


async def test_next_node_adopts_running_containers(tmp_path: Path) -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
        made = pod(container("/bin/sh", "-c", script), finalizers=["example.org/harvest"])
        name = cluster.create(made)
        with node_process(cluster, tmp_path, "outlive"):
            await cluster.phase(name, "Running")
            await until(
                lambda: any(log.read_text().endswith(" up\n") for log in tmp_path.glob("pods/**/output.log")),
                what="trap",
            )
            before = cluster.status(name)
        async with running_node(cluster, client, next_node(tmp_path, client)) as node:
            await until(lambda: node.get_worker("default", name), what="adoption")
            cluster.registry.delete(PODS, name, "default")
            after = await cluster.ended(name)
            assert after["phase"] == "Succeeded"
            assert (after["podIP"], after["startTime"]) == (before["podIP"], before["startTime"])
            assert (
                cluster.state(name)["terminated"]["startedAt"]
                == (before["containerStatuses"][0]["state"]["running"]["startedAt"])
            )


async def test_pod_without_trace_has_failed(marker: str, tmp_path: Path) -> None:
    """The node's disk is lost, as after a reinstallation."""
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        name = cluster.create(sleeper(marker))
        with node_process(cluster, tmp_path / "old"):
            await running(cluster, marker)
        async with running_node(cluster, client, next_node(tmp_path / "new", client)):
            assert (await cluster.ended(name))["phase"] == "Failed"
            terminated = cluster.state(name)["terminated"]
            assert (terminated["exitCode"], terminated["reason"]) == (137, "ContainerStatusUnknown")


async def test_pod_deleted_meanwhile_is_ended_and_removed(marker: str, tmp_path: Path) -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        name = cluster.create(sleeper(marker))
        with node_process(cluster, tmp_path, "outlive"):
            await running(cluster, marker)
        cluster.registry.delete(PODS, name, "default", grace_period_s=0)
        async with running_node(cluster, client, next_node(tmp_path, client)):
            await until(lambda: not processes_with(marker), what="end of all descendants")
            await until(lambda: not list((tmp_path / "pods").iterdir()), what="removal of the folder")


async def test_status_arrives_after_an_outage(tmp_path: Path) -> None:
    """The API server is down while the pod runs, and returns after the pod has ended."""
    go = tmp_path / "go"
    async with api_server() as cluster:
        registry, port = cluster.registry, int(cluster.url.rpartition(":")[2])
        client = ApiClient(cluster.url, token=TOKEN)
        name = cluster.create(pod(container("/bin/sh", "-c", f"while ! test -f {go}; do sleep 0.05; done; exit 4")))
        node = next_node(tmp_path / "node", client)
        running = asyncio.create_task(node.run())
        await cluster.phase(name, "Running")
    go.touch()
    await until(lambda: node.used_resources().get("pods") == 1)
    async with serving(create_app(registry, token=TOKEN), port=port):
        assert (await cluster.ended(name))["phase"] == "Failed"
        assert cluster.state(name)["terminated"]["exitCode"] == 4
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.aclose()


async def test_not_ready_taint_is_removed(tmp_path: Path) -> None:
    """Admission taints every new node. The node must keep other taints."""
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        taints = [{"key": key, "effect": "NoSchedule"} for key in ("node.kubernetes.io/not-ready", "example.org/own")]
        cluster.registry.create(NODES, {"metadata": {"name": "node-1"}, "spec": {"taints": taints}})
        async with running_node(cluster, client, next_node(tmp_path, client)):
            left = cluster.registry.get(NODES, "node-1")["spec"]["taints"]
            assert [taint["key"] for taint in left] == ["example.org/own"]


async def test_stopped_node_leaves_no_process(marker: str, tmp_path: Path) -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        cluster.create(sleeper(marker))
        async with running_node(cluster, client, next_node(tmp_path, client)):
            await running(cluster, marker)
        await until(lambda: not processes_with(marker), what="end of all descendants")


async def test_finished_pod_keeps_its_log_over_a_restart(tmp_path: Path) -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        name = cluster.create(pod(container("/bin/sh", "-c", "echo kept")))
        async with running_node(cluster, client, next_node(tmp_path, client)):
            await cluster.ended(name)
        async with running_node(cluster, client, next_node(tmp_path, client)) as node:
            await until(lambda: node.get_worker("default", name))
            assert await cluster.log(name) == "kept\n"
