"""Time and randomness for code that waits, passed as one object so that tests run in virtual time."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

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
        """Return a random number of seconds in this interval."""
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
        """Let the next delay be the first one again."""
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
