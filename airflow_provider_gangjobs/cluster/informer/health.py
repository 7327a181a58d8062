"""How well an informer keeps up: counters, staleness, and the one problem it has now, if any.

Decides what is worth a line in the log. A warning is given once, when trouble lasts, and its end is told too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider_gangjobs.cluster.errors import Gone
from airflow_provider_gangjobs.cluster.informer.log_messages import Telling, cause_of

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.clock import Timing
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.informer.store import Store

FAILURES_BEFORE_WARNING: Final = 3
SILENCE_BEFORE_WARNING_S: Final = 180.0
"""An idle watch hears a bookmark about once a minute; three that are missing are told."""


@dataclass(frozen=True)
class InformerStatistics:
    """What an informer has done since it was opened, and how it is."""

    objects: int
    subscriptions: int
    synced: bool
    staleness_s: float
    problem: str | None
    polling: bool
    """True while the cluster refuses `watch`."""
    watches_open: int
    watches_opened: int
    lists: int
    """Whole lists read; all but the first are relists or polls."""
    events: int
    bookmarks: int
    back_offs: int
    back_off_s: float
    decode_errors: int
    index_errors: int


class Health:
    """Written by the reflector, read by whoever waits."""

    def __init__(self, name: str, timing: Timing, *, proven_s: float) -> None:
        self._telling = Telling(name)
        self._proven_s = proven_s
        self._timing = timing
        self._heard_at: float | None = None
        self._last_word_at = timing.monotonic()
        self._is_stale = False
        self._failures = 0
        self._failing_since = 0.0
        self._problem: str | None = None
        self._polling_since: float | None = None
        self._opened_at: float | None = None
        self._opened_events = 0
        self._watches_opened = 0
        self._lists = 0
        self._events = 0
        self._bookmarks = 0
        self._back_offs = 0
        self._back_off_s = 0.0

    @property
    def staleness_s(self) -> float:
        """Seconds since the server was last heard of; infinite before the first whole list.

        An idle watch hears a bookmark about once a minute, so two minutes are nothing unusual.
        """
        return float("inf") if self._heard_at is None else self._timing.monotonic() - self._heard_at

    @property
    def watch_age_s(self) -> float:
        """How long the present watch has been open; 0 if there is none."""
        return 0.0 if self._opened_at is None else self._timing.monotonic() - self._opened_at

    @property
    def problem(self) -> str | None:
        """What keeps the informer from knowing the present state; None if nothing does."""
        return None if self.watch_age_s >= self._proven_s else self._problem

    def statistics(self, store: Store[Any], *, decode_errors: int) -> InformerStatistics:
        return InformerStatistics(
            objects=len(store),
            subscriptions=store.subscription_count,
            synced=store.is_synced,
            staleness_s=self.staleness_s,
            problem=self.problem,
            polling=self.polling,
            watches_open=int(self._opened_at is not None),
            watches_opened=self._watches_opened,
            lists=self._lists,
            events=self._events,
            bookmarks=self._bookmarks,
            back_offs=self._back_offs,
            back_off_s=self._back_off_s,
            decode_errors=decode_errors,
            index_errors=store.index_errors,
        )

    @property
    def polling(self) -> bool:
        """The cluster refuses `watch`."""
        return self._polling_since is not None

    def page_read(self) -> None:
        """A part of a list came. The state is as old as before, but the server is there."""
        self._word()

    def listed(self, why: str, objects: int, seconds: float) -> None:
        """A whole list was read, in so many seconds."""
        self._lists += 1
        self._word()
        self._heard_at = self._last_word_at
        self._telling.list_read(why, objects, seconds)
        if self.polling:
            self._recovered()

    def watch_opened(self, version: str) -> None:
        self._word()
        self._opened_at = self._heard_at = self._last_word_at
        self._opened_events = self._events
        self._watches_opened += 1
        self._telling.watch_opened(version)
        if self._polling_since is not None:
            self._telling.watches_again(self._last_word_at - self._polling_since)
        self._polling_since = None

    def watch_closed(self, error: ClusterError | None) -> float:
        """Seconds that the watch was open; 0 if it never was."""
        lived_s = self.watch_age_s
        if self._opened_at is not None:
            self._telling.watch_ended(error, lived_s, self._events - self._opened_events)
        self._opened_at = None
        if lived_s >= self._proven_s:
            self._recovered()
        return lived_s

    def heard(self, *, events: int, bookmarks: int) -> None:
        """The watch said something. All that came at once is one call."""
        self._word()
        self._heard_at = self._last_word_at
        self._events += events
        self._bookmarks += bookmarks
        if self._failures and self.watch_age_s >= self._proven_s:
            self._recovered()

    def failed(self, error: ClusterError | None, pause_s: float, *, of: str) -> None:
        """A list or a watch was of no use, and there is a pause before the next."""
        if not self._failures:
            self._failing_since = self._timing.monotonic()
        self._failures += 1
        self._back_offs += 1
        self._back_off_s += pause_s
        self._problem = cause_of(error)
        if isinstance(error, Gone):
            self._telling.expired(of, error)
        self._telling.backs_off(pause_s, self._failures, self._problem)
        if self._failures == FAILURES_BEFORE_WARNING:
            self._telling.does_not_keep_up(self._failures, self._problem)

    def watch_refused(self, error: ClusterError | None) -> None:
        if self._polling_since is None:
            self._polling_since = self._timing.monotonic()
            self._telling.polls(error)

    async def attend(self) -> NoReturn:
        """To be run beside the reflector: tells when nothing was heard for long."""
        while True:
            silent_s = self._timing.monotonic() - self._last_word_at
            if silent_s >= SILENCE_BEFORE_WARNING_S and not self._is_stale:
                self._is_stale = True
                self._telling.is_stale(silent_s, self.problem)
            await self._timing.sleep(SILENCE_BEFORE_WARNING_S - (0.0 if self._is_stale else silent_s))

    def _word(self) -> None:
        now = self._timing.monotonic()
        if self._is_stale:
            self._is_stale = False
            self._telling.is_fresh_again(now - self._last_word_at)
        self._last_word_at = now

    def _recovered(self) -> None:
        if self._failures >= FAILURES_BEFORE_WARNING:
            self._telling.keeps_up_again(self._timing.monotonic() - self._failing_since, self._failures)
        self._failures = 0
        self._problem = None
