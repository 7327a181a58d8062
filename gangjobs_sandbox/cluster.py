"""One embedded cluster on one event loop: store, API server, controllers, scheduler and nodes.

    async with Sandbox(SandboxConfig(nodes=3)) as sandbox:
        ...  # sandbox.url, sandbox.token, sandbox.kubeconfig_path

All nodes are ready when the block begins. At its end, the nodes stop their containers, then the controllers stop, then
the API server closes. With a `data_dir`, the next sandbox finds the objects, the logs and the token again.

The kubeconfig file of a sandbox. It contains the address and the token, and only its owner can read it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from gangjobs_sandbox import tls
from gangjobs_sandbox.api import Address, create_app, serving
from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.clock import SystemClock
from gangjobs_sandbox.controllers import ControllerSettings, controller_manager
from gangjobs_sandbox.journal import CorruptJournalError, Journal, UnwritableJournalError
from gangjobs_sandbox.node.client import ApiClient
from gangjobs_sandbox.node.config import NodeConfig
from gangjobs_sandbox.node.network import PodNetwork
from gangjobs_sandbox.node.node import Node
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.releases import RELEASES, Release
from gangjobs_sandbox.resources import PODS
from gangjobs_sandbox.scheduler import scheduler_manager
from gangjobs_sandbox.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from starlette.applications import Starlette

__all__ = ["Sandbox", "SandboxConfig", "SandboxError", "kubeconfig", "write_kubeconfig"]


NAME = "sandbox"


READY_S = 60.0
"""How long the nodes may take to join the cluster. They usually take a second."""
TLS_CLOSE_S = 0.05
"""How long the exit of a sandbox waits. TLS connections need some iterations of the event loop to close, and the
loop may end right after the sandbox."""
TOKEN_BYTES = 24


def kubeconfig(url: str, token: str | None, *, authority: bytes | None = None) -> dict[str, Any]:
    """Return the content of a kubeconfig. `authority` is the certificate (PEM) that clients trust."""
    cluster = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }


def write_kubeconfig(path: Path, url: str, token: str | None, *, authority: bytes | None = None) -> Path:
    """Write the file atomically with mode 0600. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        yaml.safe_dump(kubeconfig(url, token, authority=authority), file, sort_keys=False)
    temporary.replace(path)
    return path


class SandboxError(Exception):
    """The sandbox cannot start with this configuration. The message says why, and what to change."""


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """The configuration of a sandbox.

    `cpu` (cores), `memory` (a quantity) and `gpu` (a count) are the resources of each node. They determine the
    placement of pods; containers may use more CPU.
    """

    nodes: int = 2
    cpu: str | float = 4
    memory: str = "8Gi"
    gpu: int = 0
    kubernetes: str = "1.37"
    """The release whose Workload API is served (1.36 or 1.37), or `none`."""
    port: int = 0
    """The port of the API server. 0 means a free port."""
    data_dir: Path | None = None
    """The folder that keeps objects, logs, token and kubeconfig. None means memory and a temporary folder."""
    token: str | None = field(default=None, repr=False)
    """The bearer token that the API server accepts. None means the token in `data_dir`, or a random one."""
    workload_with_job: bool = False
    """Whether the feature gate WorkloadWithJob is on (1.36 and 1.37 only). With the gate on, the Job controller creates
    Workloads and PodGroups (KEP-5547), and 1.37 stores `Job.spec.scheduling`."""

    def check(self) -> None:
        """Check the values.

        Raises:
            SandboxError: a value is not valid. The message names the field.
        """
        for name, value in (("cpu", self.cpu), ("memory", self.memory), ("gpu", self.gpu)):
            try:
                is_amount = quantity.parse(value) >= 0
            except ValueError as error:
                raise SandboxError(f"{name}: {error}") from error
            if not is_amount:
                raise SandboxError(f"{name}: {value} is less than 0")
        if self.kubernetes not in RELEASES:
            raise SandboxError(f"kubernetes: {self.kubernetes!r} is not one of {', '.join(RELEASES)}")
        if self.workload_with_job and not RELEASES[self.kubernetes].has_pod_groups:
            raise SandboxError(
                f"workload_with_job: {self.kubernetes!r} does not have this feature gate. Choose 1.36 or 1.37."
            )


class Sandbox:
    """A cluster that runs while an `async with` block runs. A `Sandbox` can be entered once."""

    registry: Registry
    url: str
    token: str
    kubeconfig_path: Path
    _failed: asyncio.Future[None]

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.nodes: dict[str, Node] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start all parts of the cluster, and wait until the nodes are ready.

        Raises:
            SandboxError: the configuration is not valid, the port or the data_dir is in use, or a node does not join.
        """
        self.config.check()
        self._failed = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(_folder(self.config.data_dir))
            self.registry = stack.enter_context(_registry(self.config, folder / "objects"))
            with _writing(self.config.data_dir):
                self.token = self.config.token or _load_or_create_token(folder / "token")
                certificate = tls.load_or_issue(folder / "certificate.pem")
            app = create_app(self.registry, token=self.token, logs=self)
            self.url = (await stack.enter_async_context(_serving(app, self.config.port, certificate))).url
            settings = ControllerSettings(workload_with_job=self.config.workload_with_job)
            controllers = controller_manager(self.registry, self.registry.clock, settings)
            await stack.enter_async_context(self._running(controllers.run(), "controllers"))
            scheduler = scheduler_manager(self.registry, self.registry.clock)
            await stack.enter_async_context(self._running(scheduler.run(), "scheduler"))
            client = ApiClient(self.url, token=self.token, verify=certificate.client_context())
            await self._add_nodes(folder / "nodes", await stack.enter_async_context(client), stack)
            with _writing(self.config.data_dir):
                self.kubeconfig_path = write_kubeconfig(
                    folder / "kubeconfig", self.url, self.token, authority=certificate.certificate
                )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
        await asyncio.sleep(TLS_CLOSE_S)
        if self._failed.done() and (failure := self._failed.exception()) and error[0] is None:
            raise failure

    async def wait_failed(self) -> None:
        """Wait until a part of the sandbox fails unexpectedly, and raise its error."""
        await asyncio.shield(self._failed)

    async def open(self, namespace: str, pod: str, container: str, **options: Any) -> AsyncIterator[bytes]:
        """Yield the log of a container, which the node of its pod keeps. This method makes the sandbox a `LogSource`.

        Raises:
            LookupError: the pod or its node does not exist.
        """
        found = self.registry.find(PODS, namespace, pod)
        name = found["spec"].get("nodeName") if found else None
        if name not in self.nodes:
            raise LookupError(f"node {name} does not exist" if found else f"pod {pod} does not exist")
        async for piece in self.nodes[name].logs.open(namespace, pod, container, **options):
            yield piece

    async def _add_nodes(self, folder: Path, client: ApiClient, stack: AsyncExitStack) -> None:
        network = PodNetwork(str(folder))
        cfg = self.config
        for number in range(cfg.nodes):
            name = f"node-{number}"
            config = NodeConfig(name, folder / name, cpu=cfg.cpu, memory=cfg.memory, gpu=cfg.gpu)
            self.nodes[name] = Node(config, client, network=network)
            await stack.enter_async_context(self._running(self.nodes[name].run(), name))
        joined = asyncio.gather(*(node.registered.wait() for node in self.nodes.values()))
        ends: list[asyncio.Future[Any]] = [joined, self._failed]
        await asyncio.wait(ends, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        joined.cancel()
        if self._failed.done():
            self._failed.result()
        if late := [name for name, node in self.nodes.items() if not node.registered.is_set()]:
            raise SandboxError(f"{', '.join(late)} did not join the cluster within {READY_S:.0f} s")

    @asynccontextmanager
    async def _running(self, work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
        """Run the work in a task while the block runs; cancel the task at its end and wait for it."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._note_failure)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failed.done():
            self._failed.set_exception(error)


@asynccontextmanager
async def _serving(app: Starlette, port: int, certificate: tls.Certificate) -> AsyncIterator[Address]:
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(serving(app, port=port, certificate=certificate))
        except OSError as error:
            raise SandboxError(f"port {port} cannot be used: {error.strerror}. Choose another one.") from error
        yield address


@contextmanager
def _folder(data_dir: Path | None) -> Iterator[Path]:
    """Yield the folder of all files, which only its owner can read. A temporary folder is removed at the end."""
    if data_dir is None:
        folder = Path(tempfile.mkdtemp(prefix="gangjobs-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if data_dir.exists() and not data_dir.is_dir():
        raise SandboxError(f"data_dir {data_dir} is not a folder. Choose another name.")
    with _writing(data_dir):
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    yield data_dir.resolve()


@contextmanager
def _writing(data_dir: Path | None) -> Iterator[None]:
    """Raise an OSError as a SandboxError that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        if data_dir is None:
            raise SandboxError(f"{error.filename}: {error.strerror}. Set TMPDIR to a folder with room.") from error
        raise SandboxError(f"data_dir {error.filename}: {error.strerror}. Choose another one.") from error
    except UnwritableJournalError as error:
        raise SandboxError(str(error)) from error


@contextmanager
def _registry(config: SandboxConfig, folder: Path) -> Iterator[Registry]:
    """Yield the registry. Its store is in memory or, with a data_dir, in a journal in that folder."""
    if config.data_dir is None:
        yield Registry(Store(), clock=SystemClock(), release=_release(config))
        return
    try:
        with _writing(config.data_dir):
            journal = Journal(folder)
    except RuntimeError as error:
        raise SandboxError(str(error)) from error
    try:
        try:
            with _writing(config.data_dir):
                registry = Registry(Store(journal), clock=SystemClock(), release=_release(config))
        except CorruptJournalError as error:
            raise SandboxError(str(error)) from error
        yield registry
    finally:
        journal.close()


def _release(config: SandboxConfig) -> Release:
    release = RELEASES[config.kubernetes]
    return replace(release, job_scheduling=release.job_scheduling and config.workload_with_job)


def _load_or_create_token(path: Path) -> str:
    """Return the stored token, or store a new one.

    The file is written atomically: an empty token would open the API.
    """
    stored = path.read_text() if path.exists() else ""
    if stored:
        return stored
    token = secrets.token_urlsafe(TOKEN_BYTES)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_text(token)
    temporary.replace(path)
    return token
