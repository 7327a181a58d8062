"""Gangs for tests of the command line, in a namespace of their own on the embedded cluster."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec, OnFinish, OnKill, Policies
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import JOBS, NAMESPACES
from airflow_provider_gangjobs.service import GangService
from tests.airflow.polling import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gangjobs_sandbox.thread import SandboxThread

T = TypeVar("T")
POLICIES = Policies(OnKill.DELETE, OnFinish.KEEP)


@dataclass
class CliGangs:
    """A namespace, its gangs, and calls of the command line about them."""

    sandbox: SandboxThread
    namespace: str = field(default_factory=lambda: f"cli-{uuid.uuid4().hex[:8]}")
    refs: dict[str, GangRef] = field(default_factory=dict)
    """The gangs by their task."""

    @property
    def options(self) -> list[str]:
        """The options that select the cluster and the namespace."""
        return ["--kubeconfig", str(self.sandbox.kubeconfig_path), "-n", self.namespace]

    def call(self, *arguments: str) -> int:
        """Run a command and return its exit code."""
        return main([*arguments, *self.options])

    def output(self, *arguments: str, code: int = 0) -> str:
        """Run a command that ends with this exit code, and return what it prints."""
        with redirect_stdout(StringIO()) as shown:
            assert self.call(*arguments) == code
        return shown.getvalue()

    def error(self, *arguments: str, code: int) -> str:
        """Run a command that ends with this exit code, and return its message."""
        with redirect_stderr(StringIO()) as shown:
            assert self.call(*arguments) == code
        return shown.getvalue()

    def read(self, *arguments: str) -> Any:
        """Run a command, and return the JSON that it prints."""
        return json.loads(self.output(*arguments, "-o", "json"))

    def run(self, action: Callable[[GangService], Awaitable[T]]) -> T:
        """Run an action of the service in the namespace."""
        extras = {"kube_config_path": str(self.sandbox.kubeconfig_path), "namespace": self.namespace}

        async def connected() -> T:
            async with GangService.connect(ClusterConfig.from_extras("test", extras)) as gangs:
                return await action(gangs)

        return asyncio.run(connected())

    def create_namespace(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.run(lambda gangs: gangs.client.create(NAMESPACES, body))

    def submit(
        self,
        task_id: str,
        script: str,
        *,
        dag_id: str = "etl",
        run_id: str = "run1",
        installation: str = "",
        **spec: Any,
    ) -> GangRef:
        """Submit the gang of a task."""
        described = GangSpec(
            **{"image": "a", "workers": 2, "resources": {"cpu": "100m"}, "command": ["sh", "-c", script], **spec}
        )
        key = TaskKey(dag_id, run_id, task_id, installation=installation)
        submitted = self.run(lambda gangs: gangs.submit(described, key=key, claim="c", policies=POLICIES))
        self.refs[task_id] = submitted.ref
        return submitted.ref

    def wait_for(self, ref: GangRef, *phases: Phase) -> None:
        """Wait until the Job shows one of these phases."""

        wait_for(f"{ref} to be {phases}", lambda: self._phase_of(ref) in phases)

    def _phase_of(self, ref: GangRef) -> Phase:
        return phase_of(read_job(self.run(lambda gangs: gangs.client.get(JOBS, ref.name, ref.namespace))))

    def delete_all(self) -> None:
        """Delete the gangs and release their pods."""

        async def delete(gangs: GangService) -> None:
            for job in await gangs.client.list(JOBS, self.namespace):
                await gangs.delete(read_job(job).ref)

        self.run(delete)
