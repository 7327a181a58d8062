"""What forked processes have read of a cluster, and what becomes of it."""

from __future__ import annotations

import os
import time

import pytest

from airflow_provider_gangjobs.cluster import fork_shared_cache as cache
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.discovery import CachedRead, DiscoveredResources

FOUND = DiscoveredResources("1.37", None, {"v1beta1": {"workloads": frozenset({"get"})}}, is_complete=False)
KEY = (DiscoveredResources, "cluster")
NOW = time.monotonic()
LATER = NOW + 60


@pytest.fixture(autouse=True)
def _created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_memory", None)
    cache.create()


def load() -> DiscoveredResources | None:
    found = cache.load(KEY, DiscoveredResources, NOW)
    return None if found is None else found[0]


def test_forked_process_leaves_what_it_has_read() -> None:
    if (process := os.fork()) == 0:
        cache.keep(KEY, FOUND, NOW, LATER)
        os._exit(0)
    os.waitpid(process, 0)

    assert cache.load(KEY, DiscoveredResources, NOW) == (FOUND, LATER)


def test_nothing_is_kept_in_memory_that_was_not_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_memory", None)
    cache.keep(KEY, FOUND, NOW, LATER)

    assert load() is None


def test_value_that_has_expired_is_dropped() -> None:
    cache.keep(KEY, FOUND, NOW, LATER)

    assert cache.load(KEY, DiscoveredResources, LATER) is None


def test_table_that_was_written_in_part_is_empty_and_can_be_written_again() -> None:
    cache.keep(KEY, FOUND, NOW, LATER)
    assert cache._memory is not None
    cache._memory[20] ^= 1
    assert load() is None

    cache.keep(KEY, FOUND, NOW, LATER)
    assert load() == FOUND


def test_value_that_has_no_room_takes_that_of_others() -> None:
    large = "x" * (cache.SIZE_BYTES - 100)
    cache.keep(KEY, FOUND, NOW, LATER)
    cache.keep("large", large, NOW, LATER)
    cache.keep("too large", 2 * large, NOW, LATER)

    assert (load(), cache.load("large", str, NOW)) == (None, (large, LATER))


def test_value_of_another_type_is_not_used() -> None:
    cache.keep(KEY, "a text", NOW, LATER)

    assert load() is None


@pytest.mark.parametrize(("is_known", "shared"), [(True, FOUND), (False, None)], ids=["known", "unknown"])
async def test_processes_share_only_what_is_known(is_known: bool, shared: DiscoveredResources | None) -> None:
    read: CachedRead[DiscoveredResources] = CachedRead(KEY, DiscoveredResources)
    read.keep(FOUND, Clock(), 60, is_known=is_known)
    of_another: CachedRead[DiscoveredResources] = CachedRead(KEY, DiscoveredResources)

    assert not read.has_expired(Clock())
    assert of_another.has_expired(Clock()) is (shared is None)
    assert load() == shared
