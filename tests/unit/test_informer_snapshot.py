"""An informer is a snapshot if it has all objects of one version, so that a missing object does not exist."""

from __future__ import annotations

from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.kube.views import Meta, PodView


def by_name(pod: PodView) -> str:
    return pod.metadata.name


def pod(name: str, version: str = "1") -> PodView:
    return PodView(metadata=Meta(name=name, uid=f"uid-{name}", resource_version=version))


async def test_informer_is_no_snapshot_before_the_first_list() -> None:
    store = Store(by_name)
    assert not store.is_snapshot
    store.begin_list()
    store.put(pod("a"))
    assert not store.is_snapshot
    await store.end_list(set(), TimeSlice())
    assert store.is_snapshot


async def test_partial_list_is_no_snapshot_until_a_list_is_complete() -> None:
    store = Store(by_name)
    await store.end_list(store.begin_list(), TimeSlice())
    store.begin_list()  # is given up
    store.put(pod("a"))
    assert not store.is_snapshot
    store.begin_list()
    store.put(pod("a"))
    assert not store.is_snapshot
    await store.end_list(set(), TimeSlice())
    assert store.is_snapshot


async def test_events_keep_a_snapshot() -> None:
    store = Store(by_name)
    await store.end_list(store.begin_list(), TimeSlice())
    store.put(pod("a"))
    store.remove(pod("a", "2"))
    assert store.is_snapshot


async def test_closed_informer_is_no_snapshot() -> None:
    store = Store(by_name)
    await store.end_list(store.begin_list(), TimeSlice())
    store.close()
    assert not store.is_snapshot
