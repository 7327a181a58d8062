"""Keeps a store equal to the state of the server: lists the objects and then watches them, forever.

Three layers each handle one kind of failure:

* `run` lists again when a watch can no longer be resumed (after a 410, or if every watch fails).
* `_watch_until_relist` opens one watch after the other. It backs off, and polls if the cluster refuses `watch`.
* `_watch_once` is one connection. It applies the events and returns why the watch ended.

The request rate stays low whatever the server does. Only a watch that lived for a while resets the backoff, not a watch
that was accepted or received an event before it closed. A watch with many changes is resumed soon.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from airflow_provider_gangjobs.cluster.clock import Backoff, Clock, TimeSlice
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    ClusterError,
    Forbidden,
    Gone,
    MethodNotAllowed,
)
from airflow_provider_gangjobs.cluster.informer.decoding import (
    ListPage,
    Undecoded,
    ViewDecoder,
    WatchEvent,
    error_of_watch,
)
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow_provider_gangjobs.cluster.informer.config import InformerConfig
    from airflow_provider_gangjobs.cluster.informer.health import Health, InformerStatistics
    from airflow_provider_gangjobs.cluster.resources import Resource

V = TypeVar("V", bound=HasMetadata)

SLICE_S: Final = 0.005
"""How long the reflector may read before it lets other tasks run."""
EVENTS_PER_CLOCK_READ: Final = 16
"""The reflector reads the clock after this many events, which take a fraction of a millisecond."""


class ListerWatcher(Protocol):
    """The part of a client that a reflector needs. Neither method retries."""

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
        continue_token: str | None = None,
        retry_for_s: float | None = None,
    ) -> bytes: ...

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: float = 300,
        idle_timeout_s: float | None = None,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes, None]: ...


@dataclass(frozen=True)
class Target:
    """The objects to list and watch: one resource in one namespace or in all, restricted by selectors."""

    resource: Resource
    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None

    def __str__(self) -> str:
        selectors = [text for text in (self.label_selector, self.field_selector) if text]
        where = f"{self.resource} in {self.namespace or 'all namespaces'}"
        return f"{where} with {' and '.join(selectors)}" if selectors else where


class NextAction(Enum):
    """The next step after a watch has ended."""

    RESUME = auto()
    RELIST = auto()
    POLL = auto()


def next_action(error: ClusterError | None) -> NextAction:
    """Return the next step after a watch ended with `error`, or None if the server ended it regularly."""
    if isinstance(error, Gone):
        return NextAction.RELIST
    if isinstance(error, ApiError) and "ResourceVersionTooLarge" in error.causes():
        return NextAction.RELIST
    if isinstance(error, Forbidden | MethodNotAllowed):
        return NextAction.POLL
    return NextAction.RESUME


class WatchResult(NamedTuple):
    """How a watch ended."""

    error: ClusterError | None
    """Why the watch broke, or None if the server ended it."""
    lived_s: float
    changes: int
    """How many events changed the store."""


class Reflector(Generic[V]):
    """Fills `store` from `source` and records its progress in `health`."""

    def __init__(
        self,
        source: ListerWatcher,
        target: Target,
        kind: type[V],
        store: Store[V],
        *,
        health: Health,
        clock: Clock,
        config: InformerConfig,
    ) -> None:
        self._source = source
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
        self._decode_errors = 0
        self._watch_refused_until = float("-inf")

    def statistics(self) -> InformerStatistics:
        """Return the numbers of this informer for metrics."""
        return self._health.statistics(self._store, decode_errors=self._decode_errors)

    @property
    def skipped(self) -> int:
        """How many objects were left out of the store because they could not be decoded or indexed."""
        return self._decode_errors + self._store.index_errors

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
        relist = self._store.relist()
        token: str | None = None
        while True:
            page = await self._page(token, limit)
            for seen in page.items:
                if isinstance(seen, Undecoded) or not seen.metadata.uid:
                    self._decode_errors += 1
                    relist.keep(seen.metadata.uid)
                else:
                    relist.put(seen)
                await self._time_slice.yield_if_due()
            token = page.continue_token
            if not token:
                break
        await relist.finish(self._time_slice)
        self._version = page.resource_version

    async def _page(self, token: str | None, limit: int) -> ListPage[V]:
        while True:
            try:
                body = await self._source.list_page(
                    self._target.resource,
                    self._target.namespace,
                    label_selector=self._target.label_selector,
                    field_selector=self._target.field_selector,
                    limit=limit,
                    continue_token=token,
                    retry_for_s=0,
                )
                page = self._decoder.decode_page(body)
            except Gone:
                raise
            except ClusterError as error:
                await self._back_off(error, of="list")
            else:
                self._health.page_read()
                return page

    # -- watch -----------------------------------------------------------------------------------------------

    async def _watch_until_relist(self) -> str:
        """Open one watch after the other until the list has to be read again. Return the reason for the log."""
        failures = 0
        while not self._watch_is_refused():
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
            match next_action(error):
                case NextAction.POLL:
                    self._start_polling(error)
                    break
                case NextAction.RELIST:
                    await self._back_off(error, of="watch")
                    return "expired"
                case NextAction.RESUME:
                    await self._back_off(error, of="watch")
                    if failures >= self._config.failures_before_relist:
                        return "failing"
        self._backoff.reset()
        await self._clock.sleep(self._clock.random_between(*self._config.poll_interval_s))
        return "polling"

    async def _watch_once(self) -> WatchResult:
        """Watch on one connection until it ends."""
        duration_s = self._clock.random_between(*self._config.watch_timeout_s)
        events = self._source.watch(
            self._target.resource,
            self._target.namespace,
            resource_version=self._version,
            label_selector=self._target.label_selector,
            field_selector=self._target.field_selector,
            timeout_s=duration_s,
            idle_timeout_s=duration_s + self._config.idle_margin_s,
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
        return WatchResult(failure, lived_s, self._changes)

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
            self._decode_errors += 1
        elif event.type == "DELETED":
            self._changes += self._store.remove(seen)
        else:
            self._changes += self._store.put(seen)

    # -- refusals --------------------------------------------------------------------------------------------

    def _watch_is_refused(self) -> bool:
        return self._clock.monotonic() < self._watch_refused_until

    def _start_polling(self, error: ClusterError | None) -> None:
        self._watch_refused_until = self._clock.monotonic() + self._config.watch_retry_after_s
        self._health.watch_refused(error)

    async def _back_off(self, error: ClusterError | None, *, of: str) -> None:
        pause_s = self._backoff.next(at_least_s=error.retry_after_s if error else None)
        self._health.failed(error, pause_s, of=of)
        await self._clock.sleep(pause_s)
