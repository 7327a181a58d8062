"""Watches: each watch is a cursor over the history of the store, and wakes up when its resource changes.

A watch has no queue of its own. A slow reader falls behind in the shared history. When the history no longer contains
its position, the reader gets 410 in the stream and lists again, as clients of a real API server do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gangjobs_sandbox import errors
from gangjobs_sandbox.api.bodies import flag, integer, options_error
from gangjobs_sandbox.api.listing import Selection, parse_revision, select
from gangjobs_sandbox.cooperative import Cooperative, TimeSlice
from gangjobs_sandbox.store import Event, EventType, Expired, Store, Stored, Versions

if TYPE_CHECKING:
    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.resources import Resource

__all__ = ["Render", "Watch", "WatchHub"]

Render = Callable[[Stored], bytes]
"""Encodes the object of an event: the object itself, or a row of a table."""

TIMEOUT_S = 1800
"""A watch without a timeout ends after a random time between this time and its double, so that not all end together."""
BATCH_EVENTS_MAX = 128
"""The number of events written in one step, which takes some milliseconds. Other tasks run between the steps."""
BOOKMARK_BEFORE_END_S = 2
"""How long before its end a watch sends its last bookmark, from which the next watch can start."""


class WatchHub:
    """Wakes the watches of a resource when the resource changes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.closing = asyncio.Event()
        self._waiting: dict[Resource, set[asyncio.Event]] = {}
        self._stop = store.observe(self._wake)

    def _wake(self, event: Event) -> None:
        for waiter in self._waiting.get(event.resource, ()):
            waiter.set()

    def subscribe(self, resource: Resource) -> asyncio.Event:
        """Return an event that is set on each change of the resource, until `unsubscribe`."""
        waiter = asyncio.Event()
        self._waiting.setdefault(resource, set()).add(waiter)
        return waiter

    def unsubscribe(self, resource: Resource, waiter: asyncio.Event) -> None:
        self._waiting[resource].discard(waiter)

    def count(self) -> int:
        """Return the number of open watches."""
        return sum(len(waiters) for waiters in self._waiting.values())

    def close(self) -> None:
        """End all watches, and refuse new ones."""
        self._stop()
        self.closing.set()
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.set()


class Watch:
    """One validated watch request. `stream` yields the body of the response."""

    def __init__(self, hub: WatchHub, target: Target, query: Mapping[str, str], *, bookmark_s: float) -> None:
        self.hub = hub
        self.target = target
        self.selection: Selection = select(target, query)
        self.bookmarks = flag(query, "allowWatchBookmarks")
        self.bookmark_s = bookmark_s
        self.sends_initial = flag(query, "sendInitialEvents")
        _check_initial(query, sends_initial=self.sends_initial)
        self.since = parse_revision(query.get("resourceVersion"))
        timeout_s = integer(query, "timeoutSeconds")
        self.timeout_s: float = timeout_s or TIMEOUT_S * (1 + random.random())  # noqa: S311 - spreads reconnects

    async def stream(self, render: Render) -> AsyncIterator[bytes]:
        """Yield the lines of the watch, several in each piece."""
        resource = self.target.resource
        waiter = self.hub.subscribe(resource)
        try:
            cursor = self.since
            if not cursor or self.sends_initial:
                cursor = self.hub.store.revision
                initial = await TimeSlice().run(self._initial())
                for start in range(0, len(initial), BATCH_EVENTS_MAX):
                    chunk = initial[start : start + BATCH_EVENTS_MAX]
                    yield _lines(((EventType.ADDED, stored) for stored in chunk), render)
                    await asyncio.sleep(0)
                if self.sends_initial and self.bookmarks:
                    yield self._bookmark(cursor, {"k8s.io/initial-events-end": "true"})
            async for lines in self._changes(cursor, waiter, render):
                yield lines
        finally:
            self.hub.unsubscribe(resource, waiter)

    def _initial(self) -> Cooperative[Versions]:
        found = self.hub.store.list(self.target.resource, self.selection.namespace, self.selection.labels)
        return (yield from self.selection.filter(found))

    async def _changes(self, cursor: int, waiter: asyncio.Event, render: Render) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.timeout_s
        bookmark_at = self._next_bookmark(loop.time(), end)
        while not self.hub.closing.is_set() and loop.time() < end:
            waiter.clear()
            try:
                changes = self._since(cursor)
            except Expired as exc:
                yield _error_line(str(exc))
                return
            for start in range(0, len(changes), BATCH_EVENTS_MAX):
                batch = changes[start : start + BATCH_EVENTS_MAX]
                cursor = batch[-1].revision
                if lines := _lines(self.selection.events(batch), render):
                    yield lines
                await asyncio.sleep(0)
            if self.bookmarks and loop.time() >= bookmark_at:
                # No change since then matches this watch, so the watch has seen the newest revision.
                if not waiter.is_set():
                    cursor = self.hub.store.revision
                yield self._bookmark(cursor)
                bookmark_at = self._next_bookmark(loop.time(), end)
            await _wait(waiter, min(end, bookmark_at) - loop.time())

    def _since(self, cursor: int) -> list[Event]:
        store = self.hub.store
        if cursor > store.revision:
            # The revision is from another data directory of this server. Waiting would hide changes from the client.
            raise Expired(cursor, store.revision)
        return store.events_since(self.target.resource, cursor)

    def _next_bookmark(self, now: float, end: float) -> float:
        if not self.bookmarks:
            return end
        last = end - BOOKMARK_BEFORE_END_S
        regular = now + self.bookmark_s
        return min(regular, last) if now < last else regular

    def _bookmark(self, revision: int, annotations: Mapping[str, str] | None = None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = dict(annotations)
        obj = {"kind": self.target.resource.kind, "apiVersion": self.target.api_version, "metadata": metadata}
        return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def _check_initial(query: Mapping[str, str], *, sends_initial: bool) -> None:
    match = query.get("resourceVersionMatch")
    if match and "sendInitialEvents" not in query:
        detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise options_error("ListOptions", errors.forbidden_field("resourceVersionMatch", detail))
    if sends_initial and match != "NotOlderThan":
        detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise options_error("ListOptions", errors.forbidden_field("resourceVersionMatch", detail))


def _lines(events: Iterable[tuple[EventType, Stored]], render: Render) -> bytes:
    return b"".join(
        [b'{"type":"' + kind.encode() + b'","object":' + render(stored) + b"}\n" for kind, stored in events]
    )


def _error_line(message: str) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": errors.expired(message).to_status()}) + b"\n"


async def _wait(waiter: asyncio.Event, seconds: float) -> None:
    """Wait until a change, or until the time has passed."""
    if seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await waiter.wait()
    except TimeoutError:
        return
