"""Keeps a Store equal to what the server has: list it, then watch it, for ever.

Three layers, each owning one kind of failure:

* `run` lists again whenever the watch can no longer be resumed (410, or nothing but failures);
* `_follow` goes from connection to connection, and owns back-off and the clusters that refuse `watch`;
* `_watch_once` is one connection: it applies what comes, and says why it ended.

Whatever the server does, requests stay few: the back-off is forgotten only by a watch that has lived for a while, not
by one that was merely accepted, or that said something before it closed. One that brought much is resumed soon.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from airflow_provider_gangjobs.cluster.clock import Backoff, Slices, Timing
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    ClusterError,
    Forbidden,
    Gone,
    MethodNotAllowed,
)
from airflow_provider_gangjobs.cluster.informer.decoding import Page, Unread, Views, WatchEvent, error_in
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow_provider_gangjobs.cluster.informer.config import Pace
    from airflow_provider_gangjobs.cluster.informer.health import Health, InformerStatistics
    from airflow_provider_gangjobs.cluster.resources import Resource

V = TypeVar("V", bound=HasMetadata)

SLICE_S: Final = 0.005
"""Others run this often while much is read."""
EVENTS_A_LOOK: Final = 16
"""After so many, the clock is looked at. They take a fraction of a millisecond."""


class Source(Protocol):
    """What is needed of a client. Neither call retries by itself."""

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
    """Which objects: one resource, in one namespace or in all, narrowed by selectors."""

    resource: Resource
    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None

    def __str__(self) -> str:
        selectors = [text for text in (self.label_selector, self.field_selector) if text]
        where = f"{self.resource} in {self.namespace or 'all namespaces'}"
        return f"{where} with {' and '.join(selectors)}" if selectors else where


class Ending(Enum):
    """What to do after a watch has ended."""

    RESUME = auto()
    RELIST = auto()
    POLL = auto()


def ending_of(error: ClusterError | None) -> Ending:
    """Why a watch ended decides how to go on; None is the server's regular end."""
    if isinstance(error, Gone):
        return Ending.RELIST
    if isinstance(error, ApiError) and "ResourceVersionTooLarge" in error.causes():
        return Ending.RELIST
    if isinstance(error, Forbidden | MethodNotAllowed):
        return Ending.POLL
    return Ending.RESUME


class Ended(NamedTuple):
    """How a watch went."""

    error: ClusterError | None
    """What broke it; None if the server ended it."""
    lived_s: float
    news: int
    """Events that changed what the store shows."""


class Reflector(Generic[V]):
    """Fills `store` from `source`; `health` tells how well that works."""

    def __init__(
        self,
        source: Source,
        target: Target,
        kind: type[V],
        store: Store[V],
        *,
        health: Health,
        timing: Timing,
        pace: Pace,
    ) -> None:
        self._source = source
        self._target = target
        self._views = Views(kind)
        self._store = store
        self._timing = timing
        self._pace = pace
        self._health = health
        self._slices = Slices(slice_s=SLICE_S)
        self._backoff = Backoff(timing, base_s=pace.backoff_base_s, cap_s=pace.backoff_cap_s)
        self._version = ""
        self._news = 0
        self._decode_errors = 0
        self._watch_refused_until = float("-inf")

    def statistics(self) -> InformerStatistics:
        return self._health.statistics(self._store, decode_errors=self._decode_errors)

    @property
    def skipped(self) -> int:
        """How often an object was left out of the store because it could not be read."""
        return self._decode_errors + self._store.index_errors

    async def run(self) -> NoReturn:
        """List, follow, and list again. Only cancellation ends it; the server's faults are waited out."""
        why = "first"
        while True:
            await self._list(why)
            why = await self._follow()

    # -- list ------------------------------------------------------------------------------------------------

    async def _list(self, why: str) -> None:
        """Read the whole list, however often that has to be begun again. `why` is for the log."""
        began = self._timing.monotonic()
        limit = self._pace.page_objects
        while True:
            try:
                await self._read_list(limit)
            except Gone as gone:
                limit = min(2 * limit, self._pace.page_objects_max)
                await self._wait_out(gone, of="list")
            else:
                self._health.listed(why, len(self._store), self._timing.monotonic() - began)
                return

    async def _read_list(self, limit: int) -> None:
        """
        A page that fails is asked for again from its own continue token.

        Raises:
            Gone: the token is too old. What was read so far is true, but says nothing of what is missing;
                and the token for an inconsistent rest that some servers offer would leave a gap before the watch.
        """
        relist = self._store.relist()
        token: str | None = None
        while True:
            page = await self._page(token, limit)
            for seen in page.items:
                if isinstance(seen, Unread) or not seen.metadata.uid:
                    self._decode_errors += 1
                    relist.keep(seen.metadata.uid)
                else:
                    relist.put(seen)
                await self._slices.breathe()
            token = page.continue_token
            if not token:
                break
        await relist.finish(self._slices)
        self._version = page.resource_version

    async def _page(self, token: str | None, limit: int) -> Page[V]:
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
                page = self._views.page(body)
            except Gone:
                raise
            except ClusterError as error:
                await self._wait_out(error, of="list")
            else:
                self._health.page_read()
                return page

    # -- watch -----------------------------------------------------------------------------------------------

    async def _follow(self) -> str:
        """Stay up to date from one watch to the next, until the list has to be read again. Returns why it has to."""
        failures = 0
        while not self._watch_is_refused():
            error, lived_s, news = await self._watch_once()
            if lived_s >= self._pace.proven_s:
                failures = 0
                self._backoff.reset()
                if error is None:
                    continue
            elif error is None and (news >= self._pace.proven_news or lived_s >= self._pace.served_s):
                failures = 0
                await self._timing.sleep(self._timing.jittered(*self._pace.resume_s))
                continue
            failures += 1
            match ending_of(error):
                case Ending.POLL:
                    self._stop_watching(error)
                    break
                case Ending.RELIST:
                    await self._wait_out(error, of="watch")
                    return "expired"
                case Ending.RESUME:
                    await self._wait_out(error, of="watch")
                    if failures >= self._pace.failures_before_relist:
                        return "failing"
        self._backoff.reset()
        await self._timing.sleep(self._timing.jittered(*self._pace.poll_s))
        return "polling"

    async def _watch_once(self) -> Ended:
        """One connection, to its end."""
        lasts_s = self._timing.jittered(*self._pace.watch_s)
        events = self._source.watch(
            self._target.resource,
            self._target.namespace,
            resource_version=self._version,
            label_selector=self._target.label_selector,
            field_selector=self._target.field_selector,
            timeout_s=lasts_s,
            idle_timeout_s=lasts_s + self._pace.idle_margin_s,
            on_open=partial(self._health.watch_opened, self._version),
        )
        broke: ClusterError | None = None
        lived_s = 0.0
        self._news = 0
        try:
            async with aclosing(events):
                async for lines in events:
                    await self._apply_all(lines)
        except ClusterError as error:
            broke = error
        finally:
            lived_s = self._health.watch_closed(broke)
        return Ended(broke, lived_s, self._news)

    async def _apply_all(self, lines: bytes) -> None:
        """Bring what came at once into the store.

        Raises:
            ApiError: it is the server's word that this watch is over.
        """
        events = bookmarks = 0
        try:
            for event in self._views.events(lines):
                if event.type == "ERROR":
                    raise error_in(lines, request=f"watch {self._target}")
                if event.type == "BOOKMARK":
                    bookmarks += 1
                else:
                    events += 1
                    self._apply(event)
                self._version = event.object.metadata.resource_version or self._version
                if not events % EVENTS_A_LOOK:
                    await self._slices.breathe()
        finally:
            if events or bookmarks:
                self._health.heard(events=events, bookmarks=bookmarks)
        await self._slices.breathe()

    def _apply(self, event: WatchEvent[V]) -> None:
        seen = event.object
        if isinstance(seen, Unread) or not seen.metadata.uid:
            self._decode_errors += 1
        elif event.type == "DELETED":
            self._news += self._store.remove(seen)
        else:
            self._news += self._store.put(seen)

    # -- refusals --------------------------------------------------------------------------------------------

    def _watch_is_refused(self) -> bool:
        return self._timing.monotonic() < self._watch_refused_until

    def _stop_watching(self, error: ClusterError | None) -> None:
        self._watch_refused_until = self._timing.monotonic() + self._pace.watch_again_after_s
        self._health.watch_refused(error)

    async def _wait_out(self, error: ClusterError | None, *, of: str) -> None:
        pause_s = self._backoff.next(at_least_s=error.retry_after_s if error else None)
        self._health.failed(error, pause_s, of=of)
        await self._timing.sleep(pause_s)
