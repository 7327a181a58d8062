"""A wake-up for one sleeper: an event with a time limit, small enough for ten thousand gangs that sleep.

`asyncio.Event` under `asyncio.timeout` does the same for any number of sleepers, with a deque, two more objects and
two more frames for each: a kilobyte and a half, of which most gangs use nothing for hours.

Ten thousand may be woken in one moment, by a first list, a reconnect, or a deadline that they share. A loop runs all
that is ready before it looks at its timers and sockets again, so sleepers take turns: so many in each of its rounds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from airflow_provider_gangjobs.cluster.loop_local import of_running_loop

WOKEN_AT_ONCE: Final = 20
"""In one round of the loop. A look at a small gang takes 0.2 to 0.5 ms, so a round is some 10 ms."""


class Wake:
    """Set by anybody, any number of times; waited for by one at a time."""

    __slots__ = ("_is_set", "_sleeper")

    def __init__(self) -> None:
        self._is_set = False
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the sleeper now, or whoever sleeps next at once."""
        if self._is_set:
            return
        self._is_set = True
        if self._sleeper is not None:
            _stir(self._sleeper)

    async def sleep(self, timeout_s: float | None = None) -> bool:
        """Sleep until it is set, and clear it; False if it was not set in time.

        Raises:
            RuntimeError: somebody sleeps already.
        """
        if not self._is_set:
            if self._sleeper is not None:
                raise RuntimeError("only one can sleep")
            loop = asyncio.get_running_loop()
            self._sleeper = loop.create_future()
            alarm = None if timeout_s is None else loop.call_later(timeout_s, _stir, self._sleeper)
            try:
                await self._sleeper
            finally:
                self._sleeper = None
                if alarm is not None:
                    alarm.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _stir(sleeper: asyncio.Future[None]) -> None:
    of_running_loop(_Turnstile).admit(sleeper)


class _Turnstile:
    """One a loop: wakes sleepers in the order in which they were stirred."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._left = WOKEN_AT_ONCE
        self._is_counting = False

    def admit(self, sleeper: asyncio.Future[None]) -> None:
        """Wake it now, or in one of the next rounds if many are woken in this one."""
        self._queue.append(sleeper)
        self._let_through()

    def _let_through(self) -> None:
        while self._queue and self._left:
            sleeper = self._queue.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                self._left -= 1
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._next_round)

    def _next_round(self) -> None:
        self._is_counting = False
        if self._left < WOKEN_AT_ONCE:
            self._left = WOKEN_AT_ONCE
            self._let_through()
