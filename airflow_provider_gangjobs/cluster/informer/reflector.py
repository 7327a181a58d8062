"""Keeps a store equal to the state of the server: lists the objects and then watches them, forever.

Three layers each handle one kind of failure:

* `run` lists again when a watch can no longer be resumed (after a 410, or if every watch fails).
* `_watch_until_relist` opens one watch after the other. It backs off, and polls if the cluster refuses `watch`.
* `_watch_once` is one connection. It applies the events and returns why the watch ended.

The request rate stays low whatever the server does. Only a watch that lived for a while resets the backoff, not a watch
that was accepted or received an event before it closed. A watch with many changes is resumed soon.

All events that arrived together are decoded in one pass. If one of them cannot be decoded, they are decoded again one
by one. An object that cannot be decoded is skipped and counted, so that one odd object does not stop a thousand gangs.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from airflow_provider_gangjobs.cluster.clock import Backoff, Clock, TimeSlice
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    ClusterError,
    Forbidden,
    Gone,
    MethodNotAllowed,
    UnexpectedReply,
    error_from_watch_event,
)
from airflow_provider_gangjobs.cluster.http.transport import ListResponse, WatchLimits, decode_list
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata, Store
from airflow_provider_gangjobs.kube.views import JSON_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.informer.health import Health, InformerStatistics
    from airflow_provider_gangjobs.kube.resources import Resource


@dataclass(frozen=True)
class InformerConfig:
    """Settings of an informer, in seconds unless the name has another unit. The defaults suit a real API server."""

    page_objects: int = 500
    page_objects_max: int = 4000
    """A continue token expires after about five minutes, so the informer reads a list that takes longer in larger and
    larger pages. The informer does not read the whole list in one response, as client-go does: 100,000 pods are half a
    gigabyte, which would block all other tasks of the loop. A page of this size is 25 MB. A larger page would help
    little: a client that cannot list in time cannot watch from that version either."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    healthy_after_s: float = 5.0
    """A watch that lived this long worked and resets the backoff."""
    healthy_after_changes: int = 10
    """A watch that the server ended after this many changes also worked, however short it was. An overloaded API server
    ends watches without an error, and backing off would only let more events accumulate. Bookmarks and known versions
    do not count as changes, so a server that repeats itself and closes does not speed up retries."""
    served_after_s: float = 1.0
    """A watch that the server ended without an error after this time also worked: an overloaded server also ends
    watches that have no events. This allows at most one request a second."""
    resume_delay_s: tuple[float, float] = (0.02, 0.1)
    """Range of the delay before the watch that follows such a short watch."""
    watch_timeout_s: tuple[float, float] = (240.0, 360.0)
    """Range of the duration of a watch. Each watch draws its own, so that the informers of a cluster do not reconnect
    at the same time."""
    idle_margin_s: float = 30.0
    """A watch that is idle for this much longer than its duration has lost its peer."""
    failures_before_relist: int = 5
    """If no watch succeeds from a version, the server may never have had this version (restored from a backup)."""
    poll_interval_s: tuple[float, float] = (8.0, 12.0)
    """Range of the interval between two lists if the server refuses `watch`. One list serves all gangs, at an interval
    at which other operators poll each Job."""
    watch_retry_after_s: float = 300.0
    """If the server refuses `watch`, the informer tries again after this time, in case the permission was granted."""
    linger_s: float = 60.0
    """How long an informer stays after its last user has released it."""


V = TypeVar("V", bound=HasMetadata)


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class Undecoded(msgspec.Struct):
    """An object that could not be decoded, except for its uid and version. Either may be empty."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)


class WatchEvent(msgspec.Struct, Generic[V], gc=False):
    """One event. `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: V | Undecoded


_event_decoder = msgspec.json.Decoder(_RawEvent)
_undecoded_decoder = msgspec.json.Decoder(Undecoded)


def decode_page(body: bytes) -> ListResponse[msgspec.Raw]:
    """Decode one page of a list, but not its objects.

    The reflector decodes each object when it is reached. Decoding 500 objects at once would take a tenth more memory
    for as long as any of them is kept: equal values are interned only afterwards, and the freed duplicates leave gaps.

    Raises:
        UnexpectedReply: the body is not a list, or the list has no resourceVersion to watch from.
    """
    page = decode_list("list", body, msgspec.Raw)
    if not page.metadata.resource_version:
        raise UnexpectedReply(200, request="list", message="the list has no resourceVersion")
    return page


class ViewDecoder(Generic[V]):
    """Decodes objects into the view type `kind`.

    An object that does not fit becomes an `Undecoded`. This class does not check that a view has a uid. The caller
    treats a view without a uid as undecoded.
    """

    def __init__(self, kind: type[V]) -> None:
        self._view_decoder = msgspec.json.Decoder(kind)
        event = [("type", str), ("object", kind)]
        self._batch_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct("Event", event, gc=False)
        )

    def decode(self, raw: msgspec.Raw) -> V | Undecoded:
        """Decode one object."""
        try:
            return self._view_decoder.decode(raw)
        except JSON_ERRORS:
            return _decode_identity(raw)

    def decode_events(self, lines: bytes) -> Iterable[WatchEvent[V]]:
        """Decode whole lines into events, in order. The result can be iterated once.

        Raises:
            UnexpectedReply: a line is not a watch event. The iterator raises when it reaches the line.
        """
        try:
            events: list[WatchEvent[V]] = self._batch_decoder.decode_lines(lines)
        except JSON_ERRORS:  # Also for bookmarks and errors whose object does not have the view's type.
            return self._events_by_line(lines)
        return events

    def _events_by_line(self, lines: bytes) -> Iterator[WatchEvent[V]]:
        for event in _raw_events(lines):
            has_object = event.type not in ("BOOKMARK", "ERROR")
            yield WatchEvent(event.type, self.decode(event.object) if has_object else _decode_identity(event.object))


def error_of_watch(lines: bytes, *, request: str) -> ApiError:
    """Return the error in the first event of type ERROR. The lines must contain one."""
    status = next(event.object for event in _raw_events(lines) if event.type == "ERROR")
    return error_from_watch_event(bytes(status), request=request)


def _raw_events(lines: bytes) -> Iterator[_RawEvent]:
    for line in lines.split(b"\n"):
        if line.strip():
            try:
                event = _event_decoder.decode(line)
            except JSON_ERRORS as exc:
                raise UnexpectedReply(200, request="watch", message="a line is not a watch event") from exc
            yield event


def _decode_identity(raw: msgspec.Raw) -> Undecoded:
    try:
        return _undecoded_decoder.decode(raw)
    except JSON_ERRORS:
        return Undecoded()


SLICE_S: Final = 0.005
"""How long the reflector may read before it lets other tasks run."""
EVENTS_PER_CLOCK_READ: Final = 16
"""The reflector reads the clock after this many events, which take a fraction of a millisecond."""


@dataclass(frozen=True)
class Target:
    """The objects to list and watch: one resource in one namespace or in all, restricted by a label selector."""

    resource: Resource
    namespace: str | None = None
    label_selector: str | None = None

    def __str__(self) -> str:
        where = f"{self.resource} in {self.namespace or 'all namespaces'}"
        return f"{where} with {self.label_selector}" if self.label_selector else where


def has_expired(error: ClusterError | None) -> bool:
    """Return whether the server has no events after the version of the watch, so that the objects are listed again."""
    return isinstance(error, Gone) or (isinstance(error, ApiError) and "ResourceVersionTooLarge" in error.causes())


class _WatchResult(NamedTuple):
    error: ClusterError | None
    """Why the watch broke, or None if the server ended it."""
    lived_s: float
    changes: int
    """How many events changed the store."""


class Reflector(Generic[V]):
    """Fills `store` from the server of `client` and records its progress in `health`."""

    def __init__(
        self,
        client: Client,
        target: Target,
        kind: type[V],
        store: Store[V],
        *,
        health: Health,
        clock: Clock,
        config: InformerConfig,
    ) -> None:
        self._client = client
        self._target = target
        self._decoder = ViewDecoder(kind)
        self._store = store
        self._clock = clock
        self._config = config
        self._health = health
        self._time_slice = TimeSlice(slice_s=SLICE_S)
        self._backoff = Backoff(clock, base_s=config.backoff_base_s, cap_s=config.backoff_cap_s)
        self._version = ""
        self._changes = 0
        self._watch_refused_until = float("-inf")

    def statistics(self) -> InformerStatistics:
        """Return the numbers of this informer for metrics."""
        return self._health.statistics(self._store)

    @property
    def skipped(self) -> int:
        """How many objects were left out of the store because they could not be decoded or indexed."""
        return self._health.counters.decode_errors + self._store.index_errors

    async def run(self) -> NoReturn:
        """List and watch until cancelled. Failures of the server are retried forever."""
        why = "first"
        while True:
            await self._list(why)
            why = await self._watch_until_relist()

    # -- list ------------------------------------------------------------------------------------------------

    async def _list(self, why: str) -> None:
        """Read the complete list, and start again as often as needed. `why` is for the log."""
        started_at = self._clock.monotonic()
        limit = self._config.page_objects
        while True:
            try:
                await self._read_list(limit)
            except Gone as gone:
                limit = min(2 * limit, self._config.page_objects_max)
                await self._back_off(gone, of="list")
            else:
                self._health.listed(why, len(self._store), self._clock.monotonic() - started_at)
                return

    async def _read_list(self, limit: int) -> None:
        """Read all pages of a list into the store. A page that fails is requested again with its continue token.

        Raises:
            Gone: the continue token expired. The objects read so far are correct, but objects that were not read may
                exist. The token for an inconsistent rest, which some servers offer, would leave a gap before the watch.
        """
        unseen = self._store.begin_list()
        token: str | None = None
        while True:
            page = await self._page(token, limit)
            for seen in map(self._decoder.decode, page.items or ()):
                unseen.discard(seen.metadata.uid)
                if isinstance(seen, Undecoded) or not seen.metadata.uid:  # the known view stays
                    self._health.counters.decode_errors += 1
                else:
                    self._store.put(seen)
                await self._time_slice.yield_if_due()
            token = page.metadata.continue_
            if not token:
                break
        await self._store.end_list(unseen, self._time_slice)
        self._version = page.metadata.resource_version

    async def _page(self, token: str | None, limit: int) -> ListResponse[msgspec.Raw]:
        while True:
            try:
                body = await self._client.list_page(
                    self._target.resource,
                    self._target.namespace,
                    label_selector=self._target.label_selector,
                    limit=limit,
                    continue_token=token,
                    retry_for_s=0,
                )
                page = decode_page(body)
            except Gone:
                raise
            except ClusterError as error:
                await self._back_off(error, of="list")
            else:
                self._health.record_contact()
                return page

    # -- watch -----------------------------------------------------------------------------------------------

    async def _watch_until_relist(self) -> str:
        """Open one watch after the other until the list has to be read again. Return the reason for the log."""
        failures = 0
        while self._clock.monotonic() >= self._watch_refused_until:
            error, lived_s, changes = await self._watch_once()
            if lived_s >= self._config.healthy_after_s:
                failures = 0
                self._backoff.reset()
                if error is None:
                    continue
            elif error is None and (
                changes >= self._config.healthy_after_changes or lived_s >= self._config.served_after_s
            ):
                failures = 0
                await self._clock.sleep(self._clock.random_between(*self._config.resume_delay_s))
                continue
            failures += 1
            if isinstance(error, Forbidden | MethodNotAllowed):
                self._watch_refused_until = self._clock.monotonic() + self._config.watch_retry_after_s
                self._health.watch_refused(error)
                break
            await self._back_off(error, of="watch")
            if has_expired(error):
                return "expired"
            if failures >= self._config.failures_before_relist:
                return "failing"
        self._backoff.reset()
        await self._clock.sleep(self._clock.random_between(*self._config.poll_interval_s))
        return "polling"

    async def _watch_once(self) -> _WatchResult:
        duration_s = self._clock.random_between(*self._config.watch_timeout_s)
        events = self._client.watch(
            self._target.resource,
            self._target.namespace,
            resource_version=self._version,
            label_selector=self._target.label_selector,
            limits=WatchLimits(duration_s, self._config.idle_margin_s),
            on_open=partial(self._health.watch_opened, self._version),
        )
        failure: ClusterError | None = None
        lived_s = 0.0
        self._changes = 0
        try:
            async with aclosing(events):
                async for lines in events:
                    await self._apply_all(lines)
        except ClusterError as error:
            failure = error
        finally:
            lived_s = self._health.watch_closed(failure)
        return _WatchResult(failure, lived_s, self._changes)

    async def _apply_all(self, lines: bytes) -> None:
        """Apply the events that arrived together to the store.

        Raises:
            ApiError: an event of type ERROR ends this watch.
        """
        events = bookmarks = 0
        try:
            for event in self._decoder.decode_events(lines):
                if event.type == "ERROR":
                    raise error_of_watch(lines, request=f"watch {self._target}")
                if event.type == "BOOKMARK":
                    bookmarks += 1
                else:
                    events += 1
                    self._apply(event)
                self._version = event.object.metadata.resource_version or self._version
                if not events % EVENTS_PER_CLOCK_READ:
                    await self._time_slice.yield_if_due()
        finally:
            if events or bookmarks:
                self._health.received(events=events, bookmarks=bookmarks)
        await self._time_slice.yield_if_due()

    def _apply(self, event: WatchEvent[V]) -> None:
        seen = event.object
        if isinstance(seen, Undecoded) or not seen.metadata.uid:
            self._health.counters.decode_errors += 1
        elif event.type == "DELETED":
            self._changes += self._store.remove(seen)
        else:
            self._changes += self._store.put(seen)

    async def _back_off(self, error: ClusterError | None, *, of: str) -> None:
        pause_s = self._backoff.next(at_least_s=error.retry_after_s if error else None)
        self._health.failed(error, pause_s, of=of)
        await self._clock.sleep(pause_s)
