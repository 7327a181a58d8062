"""A notification for one waiter: an event with a timeout that is small enough for ten thousand waiting gangs.

`asyncio.Event` within `asyncio.timeout` does the same for any number of waiters, but needs a deque, two more objects,
and two more frames for each waiter. That is 1.5 kB, and most gangs wait for hours.

One moment may notify ten thousand waiters: a first list, a reconnect, or a shared deadline. An event loop runs all
ready callbacks before it polls its timers and sockets, so each iteration of the loop wakes a limited number of waiters.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from airflow_provider_gangjobs.cluster.loop_local import loop_local

WAKEUPS_PER_ITERATION_MAX: Final = 20
"""A look at a small gang takes 0.2 to 0.5 ms, so an iteration of the loop takes about 10 ms."""


class Notification:
    """An event that `wait` clears. Any number of tasks may notify, and one task at a time may wait."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Notify the waiter. If no task waits, the next `wait` returns at once. Safe to repeat."""
        if self._is_set:
            return
        self._is_set = True
        if self._waiter is not None:
            _wake(self._waiter)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a notification and clear it. Return False if none arrives within `timeout_s` seconds.

        Raises:
            RuntimeError: another task waits already.
        """
        if not self._is_set:
            if self._waiter is not None:
                raise RuntimeError("only one task can wait for a notification")
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _wake(waiter: asyncio.Future[None]) -> None:
    loop_local(WakeupQueue).enqueue(waiter)


class WakeupQueue:
    """Wakes the waiters of one event loop in first-in, first-out order, at a limited rate.

    :param per_iteration_max: How many waiters each iteration of the loop wakes. `None` is the plain way, without a
        limit: 10,000 gangs that are woken together then delay a timer of another trigger by 3 s of CPU, and not by
        30 ms.
    """

    def __init__(self, per_iteration_max: int | None = WAKEUPS_PER_ITERATION_MAX) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._max = per_iteration_max
        self._left = per_iteration_max or 0
        self._is_scheduled = False

    def enqueue(self, waiter: asyncio.Future[None]) -> None:
        """Wake `waiter` now, or in a later iteration of the loop if the limit of this iteration is reached."""
        if self._max is None:
            if not waiter.done():
                waiter.set_result(None)
            return
        self._queue.append(waiter)
        self._drain(self._max)

    def _drain(self, per_iteration_max: int) -> None:
        while self._queue and self._left:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._next_iteration, per_iteration_max)

    def _next_iteration(self, per_iteration_max: int) -> None:
        self._is_scheduled = False
        if self._left < per_iteration_max:
            self._left = per_iteration_max
            self._drain(per_iteration_max)
