"""Time and chance, as one seam: what waits, takes them from here, so that tests can run in virtual time."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


_CHANCE = random.Random()  # noqa: S311 - for delays
"""One for all: a `Random` is 2.5 kB, and whoever waits has a `Timing`."""


@dataclass(frozen=True)
class Timing:
    """A monotonic clock in seconds, a sleep by that clock, and a source of randomness."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: random.Random = _CHANCE

    def jittered(self, low_s: float, high_s: float) -> float:
        return self.random.uniform(low_s, high_s)


class Backoff:
    """Decorrelated jitter: each delay is drawn between the base and three times the one before, up to a cap.

    Many clients that failed together come back spread out, which doubling alone does not give.
    """

    def __init__(self, timing: Timing, *, base_s: float, cap_s: float) -> None:
        self._timing = timing
        self._base_s = base_s
        self._cap_s = cap_s
        self._last_s = 0.0

    def next(self, *, at_least_s: float | None = None) -> float:
        """The next delay in seconds, not below what a server's Retry-After asked for."""
        high_s = max(self._base_s, self._last_s) * 3
        self._last_s = min(self._cap_s, self._timing.jittered(self._base_s, high_s))
        return max(self._last_s, at_least_s or 0.0)

    def reset(self) -> None:
        self._last_s = 0.0


class Slices:
    """Lets others run: a long piece of work calls `breathe` often, and gives way every `slice_s` seconds.

    An Airflow triggerer complains when its loop is blocked for 0.2 s; one slice is a tenth of that.
    """

    def __init__(self, *, slice_s: float = 0.02, clock: Callable[[], float] = time.perf_counter) -> None:
        self._slice_s = slice_s
        self._clock = clock
        self._since = clock()

    async def breathe(self) -> None:
        if self._clock() - self._since >= self._slice_s:
            await asyncio.sleep(0)
            self._since = self._clock()
