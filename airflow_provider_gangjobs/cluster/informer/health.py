"""How well an informer keeps up: counters, staleness, and the one problem it has now, if any.

Transient faults are logged at debug. A warning is given once, when faults last, and its end is logged too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.informer.store import Store
    from airflow_provider_gangjobs.cluster.pacing import Timing

log = logging.getLogger(__name__)

FAILURES_BEFORE_WARNING = 3


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
        self._name = name
        self._proven_s = proven_s
        self._timing = timing
        self._heard_at: float | None = None
        self._failures = 0
        self._warned = False
        self._problem: str | None = None
        self.polling = False
        self._opened_at: float | None = None
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

    def listed(self) -> None:
        self._lists += 1
        self._heard_at = self._timing.monotonic()
        if self.polling:
            self._recovered()

    def watch_opened(self) -> None:
        self._opened_at = self._heard_at = self._timing.monotonic()
        self._watches_opened += 1
        self.polling = False

    def watch_closed(self) -> float:
        """Seconds that the watch was open; 0 if it never was."""
        lived_s = self.watch_age_s
        self._opened_at = None
        if lived_s >= self._proven_s:
            self._recovered()
        return lived_s

    def heard(self, *, is_bookmark: bool) -> None:
        self._heard_at = self._timing.monotonic()
        if is_bookmark:
            self._bookmarks += 1
        else:
            self._events += 1
        if self._warned and self.watch_age_s >= self._proven_s:
            self._recovered()

    def failed(self, error: ClusterError | None, pause_s: float) -> None:
        self._failures += 1
        self._back_offs += 1
        self._back_off_s += pause_s
        self._problem = str(error) if error else "the server ends each watch as soon as it has begun"
        log.debug("informer of %s waits %.1f s: %s", self._name, pause_s, self._problem)
        if self._failures == FAILURES_BEFORE_WARNING:
            self._warned = True
            log.warning("informer of %s does not keep up, it goes on trying: %s", self._name, self._problem)

    def watch_refused(self, error: ClusterError | None) -> None:
        if not self.polling:
            log.warning("informer of %s polls, because it may not watch; grant the verb: %s", self._name, error)
        self.polling = True

    def _recovered(self) -> None:
        if self._warned:
            log.info("informer of %s keeps up again", self._name)
        self._failures = 0
        self._warned = False
        self._problem = None
