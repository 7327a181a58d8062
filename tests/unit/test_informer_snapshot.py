"""When an informer's picture is one moment of the server's, and complete: only then does what is missing not exist."""

from __future__ import annotations

from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.kube.views import Meta, PodView


def by_name(pod: PodView) -> str:
    return pod.metadata.name


def pod(name: str, version: str = "1") -> PodView:
    return PodView(metadata=Meta(name=name, uid=f"uid-{name}", resource_version=version))


async def test_before_the_first_whole_list_nothing_is_certain() -> None:
    store = Store(by_name)
    assert not store.is_snapshot
    listing = store.relist()
    listing.put(pod("a"))
    assert not store.is_snapshot
    await listing.finish(TimeSlice())
    assert store.is_snapshot


async def test_a_list_that_is_half_read_is_a_mixture_until_one_was_read_to_its_end() -> None:
    store = Store(by_name)
    await store.relist().finish(TimeSlice())
    given_up = store.relist()
    given_up.put(pod("a"))
    assert not store.is_snapshot
    again = store.relist()
    again.put(pod("a"))
    assert not store.is_snapshot
    await again.finish(TimeSlice())
    assert store.is_snapshot


async def test_events_go_from_one_moment_to_the_next() -> None:
    store = Store(by_name)
    await store.relist().finish(TimeSlice())
    store.put(pod("a"))
    store.remove(pod("a", "2"))
    assert store.is_snapshot


async def test_a_closed_informer_shows_nothing_for_certain() -> None:
    store = Store(by_name)
    await store.relist().finish(TimeSlice())
    store.close()
    assert not store.is_snapshot
