"""Snapshots are shared by all users, bounded in time, and errors reveal nothing of the connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import (
    ClusterError,
    CredentialsFailed,
    InvalidConnection,
    Unreachable,
)
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.plugins.caches import (
    OTHER_ERROR,
    SNAPSHOT_TTL_S,
    TIMED_OUT,
    UNKNOWN_CONNECTION,
    SnapshotCache,
    SnapshotResult,
)
from airflow_provider_gangjobs.plugins.clusters import SharedClients
from airflow_provider_gangjobs.plugins.locator import GangLocator

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.config import ClusterConfig

LOCATOR = GangLocator(TaskKey("dag", "run", "task"), GangRef("team", "train-0", "uid"), "gpu")
SECRET = "https://10.0.0.1:6443 token=hunter2 /home/airflow/.kube/config"


@dataclass
class FailingConnection:
    """A connection whose reading waits for `released` and then raises the error."""

    error: Exception
    released: asyncio.Event = field(default_factory=asyncio.Event)
    reads: int = 0

    async def __call__(self, conn_id: str, *, must_exist: bool) -> ClusterConfig:
        self.reads += 1
        await self.released.wait()
        raise self.error


def failing_connection(error: Exception) -> FailingConnection:
    connection = FailingConnection(error)
    connection.released.set()
    return connection


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            Unreachable(f"GET {SECRET}", SECRET),
            "Airflow's API server cannot reach the cluster of the connection 'gpu'.",
            id="an unreachable cluster",
        ),
        pytest.param(
            InvalidConnection("gpu", SECRET, SECRET),
            "Airflow's API server cannot use the connection 'gpu'.",
            id="a missing kubeconfig",
        ),
        pytest.param(
            CredentialsFailed("gpu", SECRET),
            "The cluster does not accept the credentials of the connection 'gpu'.",
            id="an exec plugin that is not installed",
        ),
        pytest.param(
            AirflowNotFoundException(SECRET),
            "Airflow's API server does not find the connection 'gpu'.",
            id="no connection",
        ),
        pytest.param(ClusterError(SECRET), OTHER_ERROR, id="another error of the cluster"),
        pytest.param(RuntimeError(SECRET), OTHER_ERROR, id="an error of a secrets backend"),
    ],
)
async def test_error_reveals_nothing_of_the_connection(error: Exception, text: str) -> None:
    cache = SnapshotCache(clients=SharedClients(failing_connection(error)))

    result = await cache.get(LOCATOR)

    assert result == SnapshotResult(None, text)


async def test_concurrent_requests_share_one_snapshot() -> None:
    connection = FailingConnection(ClusterError("no"))
    cache = SnapshotCache(clients=SharedClients(connection))

    requests = [asyncio.create_task(cache.get(LOCATOR)) for _ in range(50)]
    await asyncio.sleep(0)
    requests[0].cancel()
    connection.released.set()
    results = await asyncio.gather(*requests, return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [SnapshotResult(None, OTHER_ERROR)] * 49
    assert connection.reads == 1


async def test_snapshot_is_reused_until_it_expires() -> None:
    now = 100.0
    connection = failing_connection(ClusterError("no"))
    cache = SnapshotCache(clock=lambda: now, clients=SharedClients(connection))

    await cache.get(LOCATOR)
    now += SNAPSHOT_TTL_S / 2
    await cache.get(LOCATOR)
    assert connection.reads == 1
    now += SNAPSHOT_TTL_S
    await cache.get(LOCATOR)

    assert connection.reads == 2


async def test_each_task_and_connection_has_its_own_snapshot() -> None:
    connection = failing_connection(ClusterError("no"))
    cache = SnapshotCache(clients=SharedClients(connection))

    for locator in (
        LOCATOR,
        replace(LOCATOR, key=TaskKey("dag", "run", "other")),
        replace(LOCATOR, kubernetes_conn_id="b"),
    ):
        await cache.get(locator)

    assert connection.reads == 3


async def test_snapshot_of_a_silent_cluster_times_out() -> None:
    cache = SnapshotCache(timeout_s=0.0, clients=SharedClients(FailingConnection(ClusterError("never"))))

    assert await cache.get(LOCATOR) == SnapshotResult(None, TIMED_OUT)


async def test_unknown_connection_is_not_read() -> None:
    connection = failing_connection(ClusterError("no"))
    cache = SnapshotCache(clients=SharedClients(connection))

    assert await cache.get(replace(LOCATOR, kubernetes_conn_id=None)) == SnapshotResult(None, UNKNOWN_CONNECTION)
    assert connection.reads == 0
