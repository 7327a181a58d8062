"""Lists of gangs are shared by all viewers of the page, have one reader at a time, and never keep the page waiting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.errors import ClusterError, Unreachable
from airflow_provider_gangjobs.plugins.caches import (
    ERROR_TTL_S,
    OTHER_ERROR,
    READ_TIMEOUT_S,
    ListCache,
    ListResult,
    lists_read,
)
from airflow_provider_gangjobs.plugins.clusters import ListSource, SharedClients
from airflow_provider_gangjobs.tracking.overview import Overview
from tests.plugins.test_snapshot_cache import SECRET, FailingConnection, failing_connection
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

SOURCE = ListSource("gpu", "team")
OWN = "production"


async def test_fifty_viewers_share_one_reader() -> None:
    cluster = FailingConnection(ClusterError("no"))
    cache = ListCache(clients=SharedClients(cluster))

    viewers = [asyncio.create_task(cache.get(SOURCE, OWN)) for _ in range(50)]
    await asyncio.sleep(0)
    viewers[0].cancel()
    cluster.released.set()
    found = await asyncio.gather(*viewers[1:])

    assert {one.error for one in found} == {OTHER_ERROR}
    assert cluster.reads == 1


async def test_list_is_read_again_after_it_has_expired() -> None:
    now = 100.0
    cluster = failing_connection(ClusterError("no"))
    cache = ListCache(clock=lambda: now, clients=SharedClients(cluster))

    await cache.get(SOURCE, OWN)
    now += ERROR_TTL_S - 1
    await cache.get(SOURCE, OWN)
    assert cluster.reads == 1
    now += 1
    await cache.get(SOURCE, OWN)

    assert cluster.reads == 2


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


async def test_error_reveals_nothing_of_the_connection() -> None:
    cache = ListCache(clients=SharedClients(failing_connection(Unreachable(f"GET {SECRET}", SECRET))))

    found = await cache.get(SOURCE, OWN)

    assert found.error == "Airflow's API server cannot reach the cluster of the connection 'gpu'."


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
