"""Long work in short turns, so that one event loop serves controllers, scheduler and API side by side.

Work that may be long is a generator that yields wherever others may go on; the driver decides how often they do: `Pace`
by the time that has passed, `at_once` never. What follows a `yield` may meet another state than what came before:
either it works on objects that it holds, which never change, or it looks again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

__all__ = ["Pace", "Turns", "at_once"]

T = TypeVar("T")

Turns = Generator[None, None, T]

TURN_S = 0.005
"""How long a turn lasts. A request passes the loop some five times, and each time all workers may go first."""


def at_once(turns: Turns[T]) -> T:
    """Do the work in one turn: for virtual time, and for callers that have nobody to give way to."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            result: T = end.value
            return result


class Pace:
    """One worker's turns on the event loop."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._began = time.perf_counter()

    def begin(self) -> None:
        """A turn begins now: the worker has waited for something."""
        self._began = time.perf_counter()

    async def breathe(self) -> None:
        """Give way to others if the turn is over."""
        if time.perf_counter() - self._began >= self._turn_s:
            await asyncio.sleep(0)
            self.begin()

    async def work(self, turns: Turns[T]) -> T:
        """Do the work, and give way whenever a turn is over."""
        while True:
            try:
                next(turns)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.breathe()
