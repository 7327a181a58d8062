"""An event loop whose time stands still while there is work, and jumps to the next timer when there is none.

The sockets are real, and nothing waits in real time. Server and client run on this loop, so sent bytes are readable at
once, and when nothing is readable, only timers are left. A test of ten minutes takes milliseconds and measures exact
durations by `loop.time()`.
"""

from __future__ import annotations

import asyncio
import selectors
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable

START = datetime(2026, 1, 1, tzinfo=UTC)
KERNEL_S = 0.0002
"""How long the kernel may need to carry bytes from one end of a loopback connection to the other."""
RESOLUTION_S = 1e-8
"""asyncio runs a timer that is due within the resolution of its clock. That resolution is shorter than this."""
OUTSIDE_S = 0.05
"""How long the loop waits at a time if it has no timer and only another thread or process can wake it."""


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            return super().select(OUTSIDE_S)
        ready = super().select(min(timeout, KERNEL_S))
        if not ready:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The event loop of the module. It cannot see the work of a thread, so it blocks until the thread has ended."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at this time, which is now if only a rounding error is left.

        The loop would run such a timer without a jump, and a task that waits for this time would wait for ever.
        """
        if 0 < when - self.time() < RESOLUTION_S:
            self._jumping.now = when
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        with ThreadPoolExecutor(1) as thread:
            outcome = thread.submit(func, *args)
        if (error := outcome.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(outcome.result())
        return future


class LoopClock:
    """A clock of the sandbox: the time of day by the time of the running loop."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start

    def now(self) -> datetime:
        return self._start + timedelta(seconds=asyncio.get_running_loop().time())


def elapsed() -> float:
    """Return the seconds since the test began."""
    return asyncio.get_running_loop().time()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


in_virtual_time = pytest.mark.virtual_time
"""Run an asynchronous test and its fixtures on a `VirtualTimeLoop`; `tests/conftest.py` chooses the loop."""
