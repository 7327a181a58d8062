"""Airflow's libraries in the process of the tests, without Airflow: no database, no processes, an empty home."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.submission_cluster import SubmissionCluster
    from tests.provider.task_runner import Task
    from tests.provider.virtual_control_plane import VirtualControlPlane


@pytest.fixture(scope="session")
def embedded() -> Iterator[SandboxThread]:
    """One embedded cluster for the tests of the doors."""
    from gangjobs_sandbox.cluster import SandboxConfig
    from gangjobs_sandbox.thread import running

    with running(SandboxConfig(nodes=2)) as sandbox:
        yield sandbox


@pytest.fixture
def connection(embedded: SandboxThread, monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of an Airflow connection to the embedded cluster."""
    described = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(embedded.kubeconfig_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_EMBEDDED", json.dumps(described))
    return "embedded"


@pytest.fixture
async def cluster() -> AsyncIterator[SubmissionCluster]:
    """Run an embedded cluster of the newest release with two nodes, for submissions over HTTP."""
    from tests.provider.submission_cluster import running_cluster

    async with running_cluster() as cluster:
        yield cluster


@pytest.fixture
async def plane() -> AsyncIterator[VirtualControlPlane]:
    """Run a control plane of the newest release with one large node, for tests in virtual time."""
    from tests.provider.virtual_control_plane import VirtualControlPlane

    async with VirtualControlPlane.running() as plane:
        yield plane


@pytest.fixture
def task(embedded: SandboxThread, connection: str) -> Any:
    """Make a task that runs a shell script on two ranks. What it leaves in the cluster is deleted."""
    from gangjobs_sandbox.errors import StatusError
    from gangjobs_sandbox.resources import JOBS
    from tests.provider.task_runner import Task

    made: list[Task] = []

    def make(script: str, **parameters: Any) -> Task:
        made.append(Task(embedded, connection, script, **parameters))
        return made[-1]

    yield make
    for job in (job for one in made for job in one.jobs):
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        with suppress(StatusError):  # a Job whose deletion had begun may be gone meanwhile
            embedded.call(
                lambda it, name=name, ns=namespace: it.registry.delete(JOBS, name, ns, propagation="Background")
            )
