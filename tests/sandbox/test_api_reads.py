"""Lists and watches: pages, slow readers, shared encoding, and the end of a watch."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gangjobs_sandbox.api import create_app
from gangjobs_sandbox.api.listing import page_of
from gangjobs_sandbox.api.objects import OBJECTS_PER_STEP_MAX
from gangjobs_sandbox.api.routing import Target, parse_path
from gangjobs_sandbox.api.watching import Watch, WatchHub
from gangjobs_sandbox.cooperative import run_to_completion
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS
from gangjobs_sandbox.store import Store
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gangjobs_sandbox.api.listing import Page


# -- Pages of expired revisions, and lists so long that other writers change objects while they are sent -------------


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    for number in range(4):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"c{number}"}})
    return registry


def page(registry: Registry, **query: str) -> Page:
    target = parse_path("", "v1", "configmaps", registry.release)
    assert isinstance(target, Target)
    return run_to_completion(page_of(registry.store, target, query))


def test_page_of_a_dropped_revision_is_expired(registry: Registry) -> None:
    first = page(registry, limit="2")
    registry.create(CONFIGMAPS, {"metadata": {"name": "late"}})
    registry.store.compact_history(CONFIGMAPS)
    assert first.next
    with pytest.raises(StatusError, match="continue parameter is too old") as caught:
        page(registry, limit="2", **{"continue": first.next})
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


def test_exact_revision_that_was_dropped_is_expired(registry: Registry) -> None:
    version = str(registry.store.revision - 1)
    registry.store.compact_history(CONFIGMAPS)
    with pytest.raises(StatusError, match="provided list is too old"):
        page(registry, resourceVersion=version, resourceVersionMatch="Exact")


def test_last_page_has_no_continue_token(registry: Registry) -> None:
    assert page(registry, limit="4").next is None


def test_filtered_pages_have_no_remaining_item_count(registry: Registry) -> None:
    """The server would have to scan all objects to know the number."""
    assert page(registry, limit="1", labelSelector="!none").remaining is None
    assert page(registry, limit="1").remaining == 3


MANY = 3 * OBJECTS_PER_STEP_MAX


def many(registry: Registry) -> None:
    for number in range(MANY):
        registry.create(CONFIGMAPS, {"metadata": {"name": f"many-{number}"}, "data": {"padding": "x" * 1000}})


async def disturb(registry: Registry) -> None:
    """Change, create and delete objects whenever another task yields."""
    number = 0
    while True:
        number += 1
        registry.patch(CONFIGMAPS, f"many-{number % MANY}", "default", {"data": {"n": str(number)}})
        registry.create(CONFIGMAPS, {"metadata": {"name": f"new-{number}"}})
        await asyncio.sleep(0)


@pytest.mark.parametrize("query", ["", "?labelSelector=!absent"], ids=["all", "selected"])
async def test_long_list_shows_one_revision(registry: Registry, query: str) -> None:
    many(registry)
    app = create_app(registry, token=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
        disturbing = asyncio.create_task(disturb(registry))
        listed = (await http.get(f"/api/v1/namespaces/default/configmaps{query}")).json()
        disturbing.cancel()
    moment = int(listed["metadata"]["resourceVersion"])
    assert len({item["metadata"]["name"] for item in listed["items"]}) == len(listed["items"]) >= MANY
    assert max(int(item["metadata"]["resourceVersion"]) for item in listed["items"]) <= moment
    assert registry.store.revision > moment, "no other writer has run meanwhile"


async def test_collection_is_deleted_while_others_delete_from_it(registry: Registry) -> None:
    many(registry)

    async def delete_one_by_one() -> None:
        for number in reversed(range(MANY)):
            if registry.find(CONFIGMAPS, "default", f"many-{number}"):
                registry.delete(CONFIGMAPS, f"many-{number}", "default")
            await asyncio.sleep(0)

    app = create_app(registry, token=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
        other = asyncio.create_task(delete_one_by_one())
        response = await http.delete("/api/v1/namespaces/default/configmaps")
        await other
    assert response.status_code == 200
    assert registry.list(CONFIGMAPS, "default") == []


# -- The implementation of watches: slow readers, shared encoding, and the end of a watch ----------------------------


@pytest.fixture
def short_history() -> Registry:
    return Registry(Store(window=5))


@pytest.fixture
def hub(short_history: Registry) -> WatchHub:
    return WatchHub(short_history.store)


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


async def test_dropped_revision_is_reported_in_the_stream(short_history: Registry, hub: WatchHub) -> None:
    for number in range(8):
        write(short_history, f"c{number}")
    events = [event async for event in watched(short_history, hub, resourceVersion="1")]
    assert [event["type"] for event in events] == ["ERROR"]
    status = events[0]["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")


async def test_slow_reader_gets_expired_error(short_history: Registry, hub: WatchHub) -> None:
    """No events are queued for the reader: it reads from the history as long as the history has them."""
    write(short_history, "first")
    stream = watched(short_history, hub)
    assert names([await anext(stream)]) == ["first"]
    for number in range(10):
        write(short_history, f"c{number}")
    assert (await anext(stream))["object"]["reason"] == "Expired"


async def test_revision_of_lost_state_is_expired(short_history: Registry, hub: WatchHub) -> None:
    """A server that lost its state must not let clients wait for a revision that will not come."""
    events = [event async for event in watched(short_history, hub, resourceVersion="1000")]
    assert [event["object"]["code"] for event in events] == [410]


async def test_bookmarks_advance_with_other_resources(short_history: Registry, hub: WatchHub) -> None:
    stream = watched(short_history, hub, bookmark_s=0.01, allowWatchBookmarks="true", resourceVersion="1")
    short_history.create("secrets", {"metadata": {"name": "s"}})
    bookmark = await anext(stream)
    assert (bookmark["type"], bookmark["object"]["metadata"]["resourceVersion"]) == (
        "BOOKMARK",
        str(short_history.store.revision),
    )


async def test_bookmark_does_not_skip_undelivered_events(short_history: Registry, hub: WatchHub) -> None:
    """A client that resumes from any bookmark misses no event."""
    stream = watched(short_history, hub, bookmark_s=0.001, allowWatchBookmarks="true", resourceVersion="1")
    seen: list[int] = []
    for number in range(20):
        write(short_history, f"c{number}")
        async for event in stream:
            version = int(event["object"]["metadata"]["resourceVersion"])
            assert version >= (seen[-1] if seen else 0)
            if event["type"] == "ADDED":
                assert version not in seen
                seen.append(version)
                break
    assert len(seen) == 20


async def test_closing_the_hub_ends_all_watches(short_history: Registry, hub: WatchHub) -> None:
    async def read() -> list[dict[str, Any]]:
        return [event async for event in watched(short_history, hub)]

    tasks = [asyncio.create_task(read(), name=f"watch {number}") for number in range(3)]
    while hub.count() < 3:  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    hub.close()
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.gather(*tasks) == [[], [], []]
    assert hub.count() == 0


async def test_abandoned_watch_is_unsubscribed(short_history: Registry, hub: WatchHub) -> None:
    write(short_history, "a")
    stream = watched(short_history, hub)
    await anext(stream)
    assert hub.count() == 1
    await stream.aclose()  # type: ignore[attr-defined]
    assert hub.count() == 0


async def test_all_watches_share_one_encoding(short_history: Registry, hub: WatchHub) -> None:
    encoded = []
    target = parse_path("", "v1", "configmaps", short_history.release)
    assert target
    write(short_history, "a")
    for _ in range(2):
        watch = Watch(hub, target, {"timeoutSeconds": "1"}, bookmark_s=60)
        stream = watch.stream(lambda stored: encoded.append(stored.json) or stored.json)  # type: ignore[func-returns-value]
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    assert encoded[0] is encoded[1]
