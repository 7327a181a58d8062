"""A wake-up for one sleeper: an event with a time limit, small enough for ten thousand gangs that sleep.

`asyncio.Event` under `asyncio.timeout` does the same for any number of sleepers, with a deque, two more objects and
two more frames for each: a kilobyte and a half, of which most gangs use nothing for hours.
"""

from __future__ import annotations

import asyncio


class Wake:
    """Set by anybody, any number of times; waited for by one at a time."""

    __slots__ = ("_is_set", "_sleeper")

    def __init__(self) -> None:
        self._is_set = False
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the sleeper now, or whoever sleeps next at once."""
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
    if not sleeper.done():
        sleeper.set_result(None)
