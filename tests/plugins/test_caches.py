"""What pages show is read once for all viewers and within a time limit, and errors reveal nothing of connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import ClusterError, CredentialsFailed, InvalidConnection, Unreachable
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.plugins.caches import (
    ERROR_TTL_S,
    OTHER_ERROR,
    READ_TIMEOUT_S,
    SNAPSHOT_TTL_S,
    TIMED_OUT,
    UNKNOWN_CONNECTION,
    ListCache,
    ListResult,
    SnapshotCache,
    SnapshotResult,
    lists_read,
)
from airflow_provider_gangjobs.plugins.clusters import ListSource, SharedClients
from airflow_provider_gangjobs.plugins.locator import GangLocator
from airflow_provider_gangjobs.tracking.overview import Overview
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

    Read = Callable[[], Awaitable[SnapshotResult | ListResult]]

LOCATOR = GangLocator(TaskKey("dag", "run", "task"), GangRef("team", "train-0", "uid"), "gpu")
SOURCE = ListSource("gpu", "team")
OWN = "production"
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


def snapshots(connection: FailingConnection, **options: Any) -> Read:
    cache = SnapshotCache(clients=SharedClients(connection), **options)
    return lambda: cache.get(LOCATOR)


def lists(connection: FailingConnection, **options: Any) -> Read:
    cache = ListCache(clients=SharedClients(connection), **options)
    return lambda: cache.get(SOURCE, OWN)


EACH_CACHE = pytest.mark.parametrize(("cache", "ttl_s"), [(snapshots, SNAPSHOT_TTL_S), (lists, ERROR_TTL_S)])


ERRORS: dict[str, Any] = {
    "an unreachable cluster": (
        Unreachable(f"GET {SECRET}", SECRET),
        "Airflow's API server cannot reach the cluster of the connection 'gpu'.",
    ),
    "a missing kubeconfig": (
        InvalidConnection("gpu", SECRET, SECRET),
        "Airflow's API server cannot use the connection 'gpu'.",
    ),
    "an exec plugin that is not installed": (
        CredentialsFailed("gpu", SECRET),
        "The cluster does not accept the credentials of the connection 'gpu'.",
    ),
    "no connection": (AirflowNotFoundException(SECRET), "Airflow's API server does not find the connection 'gpu'."),
    "another error of the cluster": (ClusterError(SECRET), OTHER_ERROR),
    "an error of a secrets backend": (RuntimeError(SECRET), OTHER_ERROR),
}


@EACH_CACHE
@pytest.mark.parametrize(("error", "text"), ERRORS.values(), ids=ERRORS)
async def test_error_reveals_nothing_of_the_connection(
    cache: Callable[..., Read], ttl_s: float, error: Exception, text: str
) -> None:
    assert (await cache(failing_connection(error))()).error == text


@EACH_CACHE
async def test_concurrent_requests_share_one_read(cache: Callable[..., Read], ttl_s: float) -> None:
    connection = FailingConnection(ClusterError("no"))
    read = cache(connection)

    requests = [asyncio.create_task(read()) for _ in range(50)]
    await asyncio.sleep(0)
    requests[0].cancel()
    connection.released.set()
    results = await asyncio.gather(*requests, return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert [result.error for result in results[1:]] == [OTHER_ERROR] * 49
    assert connection.reads == 1


@EACH_CACHE
async def test_what_was_read_is_read_again_after_it_has_expired(cache: Callable[..., Read], ttl_s: float) -> None:
    now = 100.0
    connection = failing_connection(ClusterError("no"))
    read = cache(connection, clock=lambda: now)

    await read()
    now += ttl_s / 2
    await read()
    assert connection.reads == 1
    now += ttl_s
    await read()

    assert connection.reads == 2


# -- Snapshots -------------------------------------------------------------------------------------------------------


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


# -- Lists of gangs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [Overview(), None], ids=["read", "not read"])
def test_list_of_all_namespaces_replaces_the_other_lists_of_its_connection(whole: Overview | None) -> None:
    found = [
        ListResult(ListSource("gpu", "*"), whole),
        ListResult(SOURCE, Overview()),
        ListResult(ListSource("cpu", "team"), Overview()),
    ]

    assert lists_read(found) == [found[0] if whole else found[1], found[2]]


async def test_slow_list_rests_longer() -> None:
    now = 0.0
    cluster = FailingConnection(ClusterError("no"))
    cache = ListCache(clock=lambda: now, clients=SharedClients(cluster), wait_s=0.0)

    await cache.get(SOURCE, OWN)
    now = 20.0
    cluster.released.set()
    await asyncio.sleep(0.01)
    now += ERROR_TTL_S + 1
    await cache.get(SOURCE, OWN)

    assert cluster.reads == 1, "reading took 20 s, so the list serves for 80 s"


async def test_page_does_not_wait_for_a_silent_cluster() -> None:
    cluster = FailingConnection(ClusterError("never"))
    cache = ListCache(clients=SharedClients(cluster), wait_s=0.0)

    found = [await cache.get(SOURCE, OWN) for _ in range(3)]
    cluster.released.set()
    await asyncio.sleep(0.01)

    assert {one.error for one in found} == {
        "The cluster of the connection 'gpu' has not answered yet. The page will show its gangs."
    }
    assert cluster.reads == 1
    assert (await cache.get(SOURCE, OWN)).error == OTHER_ERROR


@in_virtual_time
async def test_silent_clusters_are_not_counted_as_the_time_of_another_list() -> None:
    silent, cluster = FailingConnection(ClusterError("never")), failing_connection(ClusterError("no"))

    def read(conn_id: str, *, must_exist: bool) -> Awaitable[ClusterConfig]:
        return (silent if conn_id == "gpu" else cluster)(conn_id, must_exist=must_exist)

    cache = ListCache(clients=SharedClients(read), clock=elapsed, wait_s=0.0)
    for source in (ListSource("gpu", "a"), ListSource("gpu", "b"), ListSource("cpu")):
        await cache.get(source, OWN)
    await asyncio.sleep(READ_TIMEOUT_S + 1)
    found = await cache.get(ListSource("cpu"), OWN)
    await asyncio.sleep(ERROR_TTL_S)
    await cache.get(ListSource("cpu"), OWN)
    await asyncio.sleep(1)

    assert found.error == OTHER_ERROR, "not that it did not answer: it was not asked"
    assert cluster.reads == 2


async def test_list_that_no_page_reads_is_dropped() -> None:
    cluster = failing_connection(ClusterError("no"))
    cache = ListCache(clients=SharedClients(cluster))
    await cache.get(SOURCE, OWN)

    cache.forget_all_but(frozenset())
    await cache.get(SOURCE, OWN)

    assert cluster.reads == 2


async def test_list_that_is_being_read_is_not_read_a_second_time() -> None:
    cluster = FailingConnection(ClusterError("never"))
    cache = ListCache(clients=SharedClients(cluster), wait_s=0.0)
    await cache.get(SOURCE, OWN)

    cache.forget_all_but(frozenset())
    await cache.get(SOURCE, OWN)
    cluster.released.set()
    await asyncio.sleep(0.01)

    assert cluster.reads == 1


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("gpu", ListSource("gpu")),
        (" gpu/team-a ", ListSource("gpu", "team-a")),
        ("gpu/*", ListSource("gpu", "*")),
    ],
)
def test_item_of_the_setting_names_a_connection_and_perhaps_a_namespace(text: str, source: ListSource) -> None:
    assert ListSource.parse(text) == source


@pytest.mark.parametrize(
    ("rendered", "source"),
    [
        ({"kubernetes_conn_id": "gpu", "namespace": "team"}, ListSource("gpu", "team")),
        ({"kubernetes_conn_id": "gpu"}, ListSource("gpu")),
        ({"kubernetes_conn_id": {"a": 1}, "namespace": 7}, ListSource("kubernetes_default")),
        ("no mapping", ListSource("kubernetes_default")),
    ],
)
def test_rendered_fields_of_a_task_name_the_source(rendered: object, source: ListSource) -> None:
    assert ListSource.of_task(rendered) == source
