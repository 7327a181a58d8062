"""The nodes under test: a kubelet with containers, and a node of the sandbox. A test controls both in the same way."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import httpx
import yaml

from gangjobs_sandbox.node.client import ApiClient
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.network import PodNetwork
from gangjobs_sandbox.node.node import Node
from gangjobs_sandbox.node.pod_folder import pod_folders
from gangjobs_sandbox.node.process import ContainerProcess
from scripts.ports import free_port
from tests.kubelet.build import binary
from tests.kubelet.container_host import ContainerHost
from tests.kubelet.login_manager import LoginManager
from tests.replies import is_healthy
from tests.timeouts import poll

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from gangjobs_sandbox.cluster import Sandbox
    from gangjobs_sandbox.thread import SandboxThread
    from tests.cluster.control_plane import ControlPlane

NAME: Final = "node-under-test"
CPU: Final = 4
LOG_BYTES_MAX: Final = 256 * 2**20
"""The size at which logs are rotated, unless a test chooses another one."""
DISK_BYTES: Final = 64 * 2**20
"""The size of the disk of a kubelet, on which the volumes of pods are. Logs and images are on the machine's disk."""
POLL_S: Final = 0.05


class NodeUnderTest(Protocol):
    """The program of a node, which can be stopped and started again. Its containers continue meanwhile."""

    name: str

    def start(self, *, log_bytes_max: int = LOG_BYTES_MAX) -> None:
        """Start the program, and wait until it has joined the cluster."""

    def stop(self) -> None:
        """Stop the program."""

    def crash(self) -> None:
        """Stop the program and kill all containers, as when the machine loses its power."""


@dataclass
class Kubelet:
    """A kubelet that has joined a real control plane. Its containers run in containerd.

    Attributes:
        settings: fields of its configuration in addition to those of all tests.
    """

    plane: ControlPlane
    host: ContainerHost
    name: str = NAME
    settings: dict[str, Any] = field(default_factory=dict)
    _port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def running(cls, plane: ControlPlane, folder: Path) -> Iterator[Self]:
        """Run a kubelet while the block runs."""
        with ContainerHost.running(folder) as host:
            kubelet = cls(plane, host)
            host.mount_disk(kubelet.root, DISK_BYTES)
            kubelet.start()
            try:
                yield kubelet
            finally:
                kubelet.stop()

    @property
    def root(self) -> Path:
        """The folder of the kubelet's own files and of the volumes of pods."""
        return self.host.folder / "kubelet"

    @property
    def used_bytes(self) -> int:
        """The number of bytes that are used on the disk of the kubelet."""
        return int((self.host.run("du", "--bytes", "--summarize", str(self.root)) or str(DISK_BYTES)).split()[0])

    @property
    def login_manager(self) -> LoginManager:
        """The program that announces the shutdown of the machine to the kubelet, once it is started."""
        return LoginManager(self.host)

    @contextmanager
    def configured(self, **settings: Any) -> Iterator[None]:
        """Run the kubelet with further settings while the block runs."""
        self._restart_with(settings)
        try:
            yield
        finally:
            self._restart_with({})

    def _restart_with(self, settings: dict[str, Any]) -> None:
        self.stop()
        self.settings = settings
        self.start()

    def start(self, *, log_bytes_max: int = LOG_BYTES_MAX) -> None:
        folder = self.host.folder
        health_port = free_port()
        configuration = folder / "kubelet.yaml"
        configuration.write_text(yaml.safe_dump(self._configuration(log_bytes_max, health_port)))
        self._process = self.host.start(
            "kubelet",
            *("env", self.login_manager.bus_setting, str(binary(self.plane.release))),
            f"--kubeconfig={self.plane.folder / 'admin.kubeconfig'}",
            f"--config={configuration}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.host.address}",
            f"--root-dir={self.root}",
            f"--cert-dir={folder / 'kubelet-certificates'}",
        )
        self.host.wait("kubelet", lambda: _is_healthy(health_port) and self._is_ready())

    def stop(self) -> None:
        if self._process is not None:
            self.host.kill(self._process)
            self._process = None

    def crash(self) -> None:
        self.stop()
        self.host.kill_containers()

    def _is_ready(self) -> bool:
        with self.plane.client() as client:
            answer = client.get(f"/api/v1/nodes/{self.name}")
        if not answer.is_success:
            return False
        node = answer.json()
        conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")

    def _configuration(self, log_bytes_max: int, health_port: int) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.host.address,
            "port": self._port,
            "healthzPort": health_port,
            "readOnlyPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.host.socket}",
            # Only this machine reaches the address of the bridge.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "failSwapOn": False,
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            # The machine may be nearly full. Only a test decides that a pod is evicted.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.host.folder / "pod-logs"),
            "containerLogMaxSize": str(log_bytes_max),
            "containerLogMonitorInterval": "3s",
            "volumeStatsAggPeriod": "5s",
            **self.settings,
        }


def _is_healthy(port: int) -> bool:
    try:
        return is_healthy(f"http://127.0.0.1:{port}/healthz")
    except httpx.TransportError:
        return False


@dataclass
class SandboxNode:
    """A node of the sandbox, whose containers outlive its program."""

    sandbox: SandboxThread
    folder: Path
    name: str = NAME
    _network: PodNetwork = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._network = PodNetwork(str(self.folder))

    @classmethod
    @contextmanager
    def running(cls, sandbox: SandboxThread, folder: Path) -> Iterator[Self]:
        """Run a node while the block runs."""
        node = cls(sandbox, folder)
        node.start()
        try:
            yield node
        finally:
            node.stop()

    def start(self, *, log_bytes_max: int = LOG_BYTES_MAX) -> None:
        config = NodeConfig(self.name, self.folder / self.name, cpu=CPU, outlive_node=True, log_bytes_max=log_bytes_max)
        started = self.sandbox.call(lambda sandbox: self._start(sandbox, config))
        poll(lambda: started.registered.is_set(), "the node joins the cluster")

    def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self.sandbox.call(lambda _: task.cancel())
            poll(task.done, "the node ends")

    def crash(self) -> None:
        self.stop()
        for folder in pod_folders(self.folder / self.name):
            for run in folder.runs():
                ContainerProcess.adopt(str(run)).kill()

    def _start(self, sandbox: Sandbox, config: NodeConfig) -> Node:
        client = ApiClient.from_kubeconfig(sandbox.kubeconfig_path)
        node = sandbox.nodes[self.name] = Node(config, client, network=self._network)
        self._task = asyncio.create_task(_run(node, client), name=self.name)
        return node


async def _run(node: Node, client: ApiClient) -> None:
    async with client:
        await node.run()
