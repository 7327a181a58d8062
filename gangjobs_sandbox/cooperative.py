"""Cooperative multitasking within one event loop: controllers, scheduler and API run in turns, in short time slices.

Work that may take long is a generator that yields at each point at which other tasks may run. The caller decides how
often they run: `TimeSlice` lets them run when its time is over, `run_to_completion` never does. The state may change
during a `yield`. The code after a `yield` therefore works on objects that it already holds, which never change, or
reads the state again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

__all__ = ["Cooperative", "TimeSlice", "run_to_completion"]

T = TypeVar("T")

Cooperative = Generator[None, None, T]
"""Work that can be interrupted at each `yield` and returns a `T`."""

TIME_SLICE_S = 0.005
"""How long one task works before other tasks run. A request passes the event loop about five times, and each time
every working task may go first."""


def run_to_completion(work: Cooperative[T]) -> T:
    """Do the work without interruption: for virtual time, and for callers outside an event loop."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class TimeSlice:
    """The time slices of one task on the event loop. The first begins when the object is created."""

    def __init__(self, duration_s: float = TIME_SLICE_S) -> None:
        self._duration_s = duration_s
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Begin a new time slice, because the task has waited for something."""
        self._began = time.perf_counter()

    async def yield_if_expired(self) -> None:
        """Let other tasks run if the time slice is over."""
        if time.perf_counter() - self._began >= self._duration_s:
            await asyncio.sleep(0)
            self.begin()

    async def run(self, work: Cooperative[T]) -> T:
        """Do the work, and let other tasks run whenever a time slice is over."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.yield_if_expired()
