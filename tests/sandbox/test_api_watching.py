"""The implementation of watches: slow readers, shared encoding, and the end of a watch."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.api.routing import parse_path
from gangjobs_sandbox.api.watching import Watch, WatchHub
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS
from gangjobs_sandbox.store import Store
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def registry() -> Registry:
    return Registry(Store(window=5))


@pytest.fixture
def hub(registry: Registry) -> WatchHub:
    return WatchHub(registry.store)


def write(registry: Registry, name: str) -> None:
    registry.create(CONFIGMAPS, {"metadata": {"name": name}})


async def watched(
    registry: Registry, hub: WatchHub, *, bookmark_s: float = 60, **query: str
) -> AsyncIterator[dict[str, Any]]:
    target = parse_path("", "v1", "namespaces/default/configmaps", registry.release)
    assert target
    watch = Watch(hub, target, query, bookmark_s=bookmark_s)
    async with aclosing(watch.stream(lambda stored: stored.json)) as chunks:
        async for chunk in chunks:
            for line in chunk.splitlines():
                yield json.loads(line)


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["object"]["metadata"]["name"] for event in events]


async def test_dropped_revision_is_reported_in_the_stream(registry: Registry, hub: WatchHub) -> None:
    for number in range(8):
        write(registry, f"c{number}")
    events = [event async for event in watched(registry, hub, resourceVersion="1")]
    assert [event["type"] for event in events] == ["ERROR"]
    status = events[0]["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")


async def test_slow_reader_gets_expired_error(registry: Registry, hub: WatchHub) -> None:
    """No events are queued for the reader: it reads from the history as long as the history has them."""
    write(registry, "first")
    stream = watched(registry, hub)
    assert names([await anext(stream)]) == ["first"]
    for number in range(10):
        write(registry, f"c{number}")
    assert (await anext(stream))["object"]["reason"] == "Expired"


async def test_revision_of_lost_state_is_expired(registry: Registry, hub: WatchHub) -> None:
    """A server that lost its state must not let clients wait for a revision that will not come."""
    events = [event async for event in watched(registry, hub, resourceVersion="1000")]
    assert [event["object"]["code"] for event in events] == [410]


async def test_bookmarks_advance_with_other_resources(registry: Registry, hub: WatchHub) -> None:
    stream = watched(registry, hub, bookmark_s=0.01, allowWatchBookmarks="true", resourceVersion="1")
    registry.create("secrets", {"metadata": {"name": "s"}})
    bookmark = await anext(stream)
    assert (bookmark["type"], bookmark["object"]["metadata"]["resourceVersion"]) == (
        "BOOKMARK",
        str(registry.store.revision),
    )


async def test_bookmark_does_not_skip_undelivered_events(registry: Registry, hub: WatchHub) -> None:
    """A client that resumes from any bookmark misses no event."""
    stream = watched(registry, hub, bookmark_s=0.001, allowWatchBookmarks="true", resourceVersion="1")
    seen: list[int] = []
    for number in range(20):
        write(registry, f"c{number}")
        async for event in stream:
            version = int(event["object"]["metadata"]["resourceVersion"])
            assert version >= (seen[-1] if seen else 0)
            if event["type"] == "ADDED":
                assert version not in seen
                seen.append(version)
                break
    assert len(seen) == 20


async def test_closing_the_hub_ends_all_watches(registry: Registry, hub: WatchHub) -> None:
    async def read() -> list[dict[str, Any]]:
        return [event async for event in watched(registry, hub)]

    tasks = [asyncio.create_task(read(), name=f"watch {number}") for number in range(3)]
    while hub.count() < 3:  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    hub.close()
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.gather(*tasks) == [[], [], []]
    assert hub.count() == 0


async def test_abandoned_watch_is_unsubscribed(registry: Registry, hub: WatchHub) -> None:
    write(registry, "a")
    stream = watched(registry, hub)
    await anext(stream)
    assert hub.count() == 1
    await stream.aclose()  # type: ignore[attr-defined]
    assert hub.count() == 0


async def test_all_watches_share_one_encoding(registry: Registry, hub: WatchHub) -> None:
    encoded = []
    target = parse_path("", "v1", "configmaps", registry.release)
    assert target
    write(registry, "a")
    for _ in range(2):
        watch = Watch(hub, target, {"timeoutSeconds": "1"}, bookmark_s=60)
        stream = watch.stream(lambda stored: encoded.append(stored.json) or stored.json)  # type: ignore[func-returns-value]
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    assert encoded[0] is encoded[1]
