"""Time and randomness for code that waits, as one object so that tests run in virtual time, and the server's clock.

The times in objects come from the API server, so deadlines that count from them are compared with the same clock, which
the `Date` header of its responses shows. The clock of the machine that waits may be minutes ahead or behind.

`Date` has whole seconds. One response therefore limits the server's time to an interval of one second plus the round
trip time. `ServerClock` returns the latest beginning of the intervals, so it is at most a second late and never early:
a deadline is not declared to have passed before it has. An interval that ends before this time comes from another API
server, or the clock was set back. Clocks of servers that use NTP differ by milliseconds, so the estimate is first only
reduced by `DIFFERENCE_MAX_S`, and replaced if that is not enough.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


_RANDOM = random.Random()  # noqa: S311 - for delays
"""Shared by all clocks: a `Random` takes 2.5 kB, and each waiting gang has a `Clock`."""


class Clock(Struct, frozen=True):
    """A monotonic clock in seconds, a sleep by that clock, and a source of randomness."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: random.Random = _RANDOM

    def random_between(self, low_s: float, high_s: float) -> float:
        return self.random.uniform(low_s, high_s)


class Backoff:
    """Exponential backoff with decorrelated jitter.

    Each delay is drawn between the base and three times the previous delay, up to a cap. Clients that failed together
    retry at different times, which doubling the delay alone does not achieve.
    """

    def __init__(self, clock: Clock, *, base_s: float, cap_s: float) -> None:
        self._clock = clock
        self._base_s = base_s
        self._cap_s = cap_s
        self._last_s = 0.0

    def next(self, *, at_least_s: float | None = None) -> float:
        """Return the next delay in seconds, at least the `at_least_s` of a server's Retry-After."""
        high_s = max(self._base_s, self._last_s) * 3
        self._last_s = min(self._cap_s, self._clock.random_between(self._base_s, high_s))
        return max(self._last_s, at_least_s or 0.0)

    def reset(self) -> None:
        self._last_s = 0.0


class TimeSlice:
    """Yields to the event loop during long work: callers call `yield_if_due` often, and it yields every `slice_s`.

    An Airflow triggerer warns when its loop is blocked for 0.2 s. The default is a tenth of that.
    """

    def __init__(self, *, slice_s: float = 0.02, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._slice_s = slice_s
        self._monotonic = monotonic
        self._started_at = monotonic()

    async def yield_if_due(self) -> None:
        """Let other tasks run if the slice is used up."""
        if self._monotonic() - self._started_at >= self._slice_s:
            await asyncio.sleep(0)
            self._started_at = self._monotonic()


RESOLUTION_S: Final = 1.0
"""The resolution of the `Date` header (RFC 9110, section 5.6.7)."""
DIFFERENCE_MAX_S: Final = 0.1
"""The largest difference between the clocks of two API servers of a cluster that does not discard the estimate."""


class ServerClock:
    """Estimates the API server's time from its responses. Each client has one."""

    __slots__ = ("_earliest_s", "_monotonic")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._earliest_s: float | None = None
        """The earliest possible Unix time of the server at the local monotonic time 0."""

    def observe(self, date: str | None, *, sent_at: float) -> None:
        """Update the estimate from a response that has just arrived. A missing or malformed header changes nothing.

        :param date: The `Date` header of the response.
        :param sent_at: When the request was sent, by the local monotonic clock.
        """
        server_s = None if date is None else _unix_time(date)
        if server_s is None:
            return
        earliest, latest, known = server_s - self._monotonic(), server_s + RESOLUTION_S - sent_at, self._earliest_s
        if known is None or known - DIFFERENCE_MAX_S > latest:  # the first response, or the clock was set back
            self._earliest_s = earliest
        else:  # another API server may be a little behind the one before
            self._earliest_s = max(earliest, known if known <= latest else known - DIFFERENCE_MAX_S)

    @property
    def is_known(self) -> bool:
        """True if a response has shown the server's time."""
        return self._earliest_s is not None

    def now(self) -> datetime:
        """Return the server's time, or the local time if the server's time is unknown."""
        if self._earliest_s is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._earliest_s + self._monotonic(), UTC)

    @property
    def ahead_s(self) -> float:
        """How many seconds the server's clock is ahead of the local clock, or 0 if the server's time is unknown."""
        return 0.0 if self._earliest_s is None else (self.now() - datetime.now(UTC)).total_seconds()


@lru_cache(maxsize=8)  # the responses of one second carry the same header
def _unix_time(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
