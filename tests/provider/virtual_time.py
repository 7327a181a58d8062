"""An event loop whose time stands still while there is work, and jumps to the next timer when there is none.

Real sockets, no real waiting: server and client run on this one loop, so whatever was sent is readable
at once, and when nothing is readable nobody is left but timers. A test of ten minutes takes milliseconds
and measures exact durations by `loop.time()`.
"""

from __future__ import annotations

import asyncio
import selectors
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

START = datetime(2026, 1, 1, tzinfo=UTC)
KERNEL_S = 0.0002
"""What the kernel may need to carry bytes from one end of a loopback connection to the other."""
OUTSIDE_S = 0.05


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
    """See the module. A thread is work that it cannot see, so it stands still until the thread has ended."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

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
    """The time of day by the running loop's time, as sandbox and follower ask for it."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start

    def now(self) -> datetime:
        return self._start + timedelta(seconds=asyncio.get_running_loop().time())


def elapsed() -> float:
    """Seconds since the test began."""
    return asyncio.get_running_loop().time()


in_virtual_time = pytest.mark.virtual_time
"""Run an asynchronous test and its fixtures on a `VirtualTimeLoop`; `tests/conftest.py` chooses the loop."""
