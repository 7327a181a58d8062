"""The health of an informer: counters, staleness, and the current problem, if any, and the log lines about them.

There is one line for each change of the informer's state, and none for an event or object. INFO and WARNING lines are
for the operators of a triggerer: an informer starts, fails repeatedly, polls, or is stale, and recovers. A lasting
problem is logged once as a warning, and its end is logged too. DEBUG lines report the result of each request, whose
number the backoff limits. Each line names the informer. `docs/operations.md` lists them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from logging import DEBUG, INFO, WARNING
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider_gangjobs.cluster.errors import Gone
from airflow_provider_gangjobs.kube.text import log_fields

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.informer.store import Store
    from airflow_provider_gangjobs.kube.text import Field


log = logging.getLogger(__name__)


def describe_cause(error: ClusterError | None) -> str:
    """Return why a request failed or a watch ended early: the server's reason and message, never the request body."""
    return str(error) if error else "the server ended the watch right after its start"


FAILURES_BEFORE_WARNING: Final = 3
SILENCE_BEFORE_WARNING_S: Final = 180.0
"""An idle watch receives a bookmark about once a minute. The informer warns when three are missing."""


@dataclass(kw_only=True)
class _InformerCounters:
    """Counters of an informer since it was created."""

    watches_opened: int = 0
    lists: int = 0
    """Complete lists. Each list after the first is a relist or a poll."""
    events: int = 0
    bookmarks: int = 0
    back_offs: int = 0
    back_off_s: float = 0.0
    decode_errors: int = 0
    """Objects that were left out, or whose change was, because they could not be decoded."""


@dataclass(kw_only=True)
class InformerStatistics(_InformerCounters):
    """The counters and the state of an informer."""

    objects: int
    subscriptions: int
    synced: bool
    staleness_s: float
    problem: str | None
    polling: bool
    """True while the cluster refuses `watch`."""
    watches_open: int
    index_errors: int


class Health:
    """The health of one informer. The reflector writes it, and the users of the informer read it."""

    def __init__(self, name: str, clock: Clock, *, healthy_after_s: float) -> None:
        self._name = name
        self._proven_s = healthy_after_s
        self._clock = clock
        self._current_at: float | None = None
        self._last_contact_at = clock.monotonic()
        self._is_stale = False
        self._failures = 0
        self._failing_since = 0.0
        self._problem: str | None = None
        self._polling_since: float | None = None
        self._opened_at: float | None = None
        self._opened_events = 0
        self.counters = _InformerCounters()

    @property
    def staleness_s(self) -> float:
        """Seconds since the last response of the server. Infinite before the first complete list.

        An idle watch receives a bookmark about once a minute, so a staleness of two minutes is normal.
        """
        return float("inf") if self._current_at is None else self._clock.monotonic() - self._current_at

    @property
    def watch_age_s(self) -> float:
        """Seconds since the current watch was opened, or 0 if no watch is open."""
        return 0.0 if self._opened_at is None else self._clock.monotonic() - self._opened_at

    @property
    def problem(self) -> str | None:
        """Why the informer may not know the current state, or None if it does."""
        return None if self.watch_age_s >= self._proven_s else self._problem

    def statistics(self, store: Store[Any]) -> InformerStatistics:
        """Return the numbers of this informer for metrics."""
        return InformerStatistics(
            objects=len(store),
            subscriptions=store.subscription_count,
            synced=store.is_synced,
            staleness_s=self.staleness_s,
            problem=self.problem,
            polling=self.polling,
            watches_open=int(self._opened_at is not None),
            index_errors=store.index_errors,
            **vars(self.counters),
        )

    @property
    def polling(self) -> bool:
        """True while the cluster refuses `watch`."""
        return self._polling_since is not None

    def listed(self, why: str, objects: int, seconds: float) -> None:
        """Record a complete list. `why` is the reason for the list, and `seconds` its duration."""
        self.counters.lists += 1
        self.record_contact()
        self._current_at = self._last_contact_at
        if why == "first":
            self._log(INFO, "informer synced", objects=objects, seconds=seconds)
        else:
            self._log(DEBUG, "list read", why=why, objects=objects, seconds=seconds)
        if self.polling:
            self._recovered()

    def watch_opened(self, version: str) -> None:
        """Note a new watch, which begins after this resource version."""
        self.record_contact()
        self._opened_at = self._current_at = self._last_contact_at
        self._opened_events = self.counters.events
        self.counters.watches_opened += 1
        self._log(DEBUG, "watch opened", version=version)
        if self._polling_since is not None:
            self._log(INFO, "informer watches again", after_s=self._last_contact_at - self._polling_since)
        self._polling_since = None

    def watch_closed(self, error: ClusterError | None) -> float:
        """Record the end of a watch. Return how many seconds the watch was open, or 0 if it never opened."""
        lived_s = self.watch_age_s
        if self._opened_at is not None:
            why, events = str(error or "closed by the server"), self.counters.events - self._opened_events
            self._log(DEBUG, "watch ended", why=why, lived_s=lived_s, events=events)
        self._opened_at = None
        if lived_s >= self._proven_s:
            self._recovered()
        return lived_s

    def received(self, *, events: int, bookmarks: int) -> None:
        """Record events and bookmarks that arrived together."""
        self.record_contact()
        self._current_at = self._last_contact_at
        self.counters.events += events
        self.counters.bookmarks += bookmarks
        if self._failures and self.watch_age_s >= self._proven_s:
            self._recovered()

    def failed(self, error: ClusterError | None, pause_s: float, *, of: str) -> None:
        """Record a failed list or watch. `pause_s` is the delay before the next, and `of` is list or watch."""
        if not self._failures:
            self._failing_since = self._clock.monotonic()
        self._failures += 1
        self.counters.back_offs += 1
        self.counters.back_off_s += pause_s
        self._problem = describe_cause(error)
        if isinstance(error, Gone):
            self._log(DEBUG, "version expired", of=of, cause=str(error))
        self._log(DEBUG, "backing off", pause_s=pause_s, failures=self._failures, cause=self._problem)
        if self._failures == FAILURES_BEFORE_WARNING:
            failing = "informer fails repeatedly and keeps retrying"
            self._log(WARNING, failing, failures=self._failures, cause=self._problem)

    def watch_refused(self, error: ClusterError | None) -> None:
        """Note that the API server refuses the watch verb, so that the informer polls."""
        if self._polling_since is None:
            self._polling_since = self._clock.monotonic()
            refused = "informer polls because the API server refuses the watch verb, grant it"
            self._log(WARNING, refused, cause=describe_cause(error))

    async def warn_when_stale(self) -> NoReturn:
        """Run next to the reflector and warn when the server has not responded for `SILENCE_BEFORE_WARNING_S`."""
        while True:
            silent_s = self._clock.monotonic() - self._last_contact_at
            if silent_s >= SILENCE_BEFORE_WARNING_S and not self._is_stale:
                self._is_stale = True
                silent = "informer is stale, the API server does not respond"
                self._log(WARNING, silent, silent_s=silent_s, cause=self.problem)
            remaining_s = SILENCE_BEFORE_WARNING_S - (0.0 if self._is_stale else silent_s)
            # The rest of a difference of floats may be so small that adding it to the time does not change the time.
            await self._clock.sleep(max(remaining_s, 0.001))

    def record_contact(self) -> None:
        """Record that the server responds, as with a page of a list, which leaves the state as old as before."""
        now = self._clock.monotonic()
        if self._is_stale:
            self._is_stale = False
            self._log(INFO, "informer is up to date again", silent_s=now - self._last_contact_at)
        self._last_contact_at = now

    def _recovered(self) -> None:
        if self._failures >= FAILURES_BEFORE_WARNING:
            after_s = self._clock.monotonic() - self._failing_since
            self._log(INFO, "informer recovered", after_s=after_s, failures=self._failures)
        self._failures = 0
        self._problem = None

    def _log(self, level: int, message: str, **fields: Field) -> None:
        log_fields(log, level, message, informer=self._name, **fields)
