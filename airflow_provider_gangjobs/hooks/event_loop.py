"""Run a coroutine from code that is not asynchronous, and stay open to signals.

Airflow ends a task whose `execution_timeout` has passed by a signal whose handler raises in the main thread. If an
event loop runs there, the exception is raised inside whichever task of the loop happens to run, and asyncio hands it
to whoever awaits that task, which may be nobody. So the loop runs in a thread of its own, and the main thread only
waits: what a handler raises ends the wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_WITHIN_S: Final = 10.0
"""How long a cancelled coroutine may take to clean up. A blocking call in a thread, such as an exec plugin, may take
longer, and must not keep an exception from its caller."""


def run(coroutine: Coroutine[object, object, T], *, stop_within_s: float = STOP_WITHIN_S) -> T:
    """The coroutine's result, from an event loop that runs in a thread of its own and ends with it.

    If the wait is interrupted by an exception, such as one that a signal handler raises, the coroutine is cancelled,
    its end is awaited for at most `stop_within_s` seconds, and the exception is raised.
    """
    work = _Work(coroutine)
    thread = threading.Thread(target=copy_context().run, args=(work.run,), name="gangjobs", daemon=True)
    try:
        thread.start()
        result = work.results.get()
    except BaseException:
        work.cancel()
        if thread.ident is not None:
            thread.join(stop_within_s)
        if thread.is_alive():
            log.warning("The interrupted work on the cluster has not ended within %.0f s", stop_within_s)
        raise
    thread.join()
    return result()


class _Work(Generic[T]):
    """A coroutine, and the loop that it runs on."""

    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = False
        # Its `get` is a single call in C, which a signal handler's exception cannot leave half done.
        self.results: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def run(self) -> None:
        """The body of the thread. Always leaves one result."""
        try:
            value = asyncio.run(self._main())
        except BaseException as raised:
            error = raised

            def fail() -> T:
                raise error

            self.results.put(fail)
        else:
            self.results.put(lambda: value)
        finally:
            self._coroutine.close()  # in case it was never begun

    def cancel(self) -> None:
        """Cancel the coroutine, from another thread. Safe before it has begun and after it has ended."""
        self._cancelled = True
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)

    async def _main(self) -> T:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self._cancelled:
            raise asyncio.CancelledError
        return await self._coroutine


__all__ = ["run"]
