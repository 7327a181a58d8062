"""Fixtures: embedded clusters, control planes in virtual time, and tasks. The tests run no process of Airflow."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.gang_without_controllers import GangWithoutControllers
    from tests.provider.submission_cluster import SubmissionCluster
    from tests.provider.task_runner import Task
    from tests.provider.virtual_control_plane import VirtualControlPlane


@pytest.fixture(scope="session")
def embedded() -> Iterator[SandboxThread]:
    """One embedded cluster for all tests of operators, sensors, triggers, and hooks."""
    from gangjobs_sandbox.cluster import SandboxConfig
    from gangjobs_sandbox.thread import running

    with running(SandboxConfig(nodes=2)) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def resumes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a deferred task resume without the wait for a heartbeat of an executor, since no executor runs."""
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")


@pytest.fixture
def connection(embedded: SandboxThread, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of an Airflow connection to the embedded cluster."""
    described = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(embedded.kubeconfig_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_EMBEDDED", json.dumps(described))
    return "embedded"


@pytest.fixture
async def close_informers() -> AsyncIterator[None]:
    """Close the watches, which would stay open for a minute, before the loop ends."""
    from airflow_provider_gangjobs.cluster.informer import informers

    yield
    await informers().aclose()


@pytest.fixture
async def cluster() -> AsyncIterator[SubmissionCluster]:
    """Run an embedded cluster of the newest release with two nodes, for submissions over HTTP."""
    from tests.provider.submission_cluster import running_cluster

    async with running_cluster() as cluster:
        yield cluster


@pytest.fixture
async def without_gangs() -> AsyncIterator[SubmissionCluster]:
    """Run an embedded cluster whose release does not serve the Workload API."""
    from tests.provider.submission_cluster import running_cluster

    async with running_cluster("none") as cluster:
        yield cluster


@pytest.fixture
async def plane() -> AsyncIterator[VirtualControlPlane]:
    """Run a control plane of the newest release with one large node, for tests in virtual time."""
    from tests.provider.virtual_control_plane import VirtualControlPlane

    async with VirtualControlPlane.running() as plane:
        yield plane


@pytest.fixture
async def idle_plane() -> AsyncIterator[VirtualControlPlane]:
    """Run a control plane in virtual time without controllers and kubelets, so that only the test changes pods."""
    from tests.provider.virtual_control_plane import VirtualControlPlane

    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        yield plane


@pytest.fixture
async def gang(idle_plane: VirtualControlPlane) -> GangWithoutControllers:
    """A gang whose pods the test creates."""
    from tests.provider.gang_without_controllers import GangWithoutControllers

    return GangWithoutControllers(idle_plane)


@pytest.fixture
def task(embedded: SandboxThread, connection: str) -> Any:
    """Make tasks that run a shell script on two ranks, and delete their Jobs after the test."""
    from gangjobs_sandbox.errors import StatusError
    from gangjobs_sandbox.resources import JOBS
    from tests.provider.task_runner import Task

    made: list[Task] = []

    def make(script: Any, kind: type[Task] = Task, **parameters: Any) -> Task:
        made.append(kind(embedded, connection, script, **parameters))
        return made[-1]

    yield make
    for job in (job for one in made for job in one.jobs):
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        with suppress(StatusError):  # the Job may be gone if its deletion had begun
            embedded.call(
                lambda it, name=name, ns=namespace: it.registry.delete(JOBS, name, ns, propagation="Background")
            )
