"""A session: one client of a cluster, kept open for code that is not asynchronous and that signals may interrupt::

    with GangSession(config) as session:
        session.call(lambda service: service.halt(ref, reason="for examination"))

The first call connects. All calls use the same event loop, the same client and its TLS connections.

Airflow ends a task whose `execution_timeout` has passed by a signal whose handler raises in the main thread. If an
event loop ran in the main thread, the exception would be raised inside whichever task of the loop runs at that moment,
and asyncio would hand the exception to whoever awaits that task, which may be nobody. So the loop runs in a thread of
its own, and the main thread only waits: an exception that a signal handler raises ends the wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeVar

from airflow_provider_gangjobs.service import GangService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

__all__ = ["EventLoopThread", "GangSession", "run"]


log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_WITHIN_S: Final = 10.0
"""How long a cancelled coroutine may take to clean up. A blocking call in a thread, such as an exec plugin, may take
longer, and must not keep an exception from its caller."""


def run(coroutine: Coroutine[object, object, T], *, stop_within_s: float = STOP_WITHIN_S) -> T:
    """Run one coroutine on an event loop of its own, as `EventLoopThread.run` does. Returns the coroutine's result."""
    thread = EventLoopThread(stop_within_s=stop_within_s)
    try:
        return thread.run(coroutine)
    finally:
        thread.close()


class EventLoopThread:
    """An event loop in a thread of its own. The thread starts with the first coroutine and ends with `close`.

    :param stop_within_s: How many seconds an interrupted coroutine, and `close`, may take at most.
    """

    def __init__(self, *, stop_within_s: float = STOP_WITHIN_S) -> None:
        self._stop_within_s = stop_within_s
        self.contexts = AsyncExitStack()
        """Contexts that coroutines on this loop enter, and that `close` exits on the loop."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._is_stuck = False
        self._calls: set[_Call[Any]] = set()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop and block until the coroutine ends. Returns the coroutine's result.

        If an exception interrupts the wait, such as one that a signal handler raises, the coroutine is cancelled, its
        end is awaited for at most `stop_within_s` seconds, and the exception is raised. Not safe to call from several
        threads.

        Raises:
            RuntimeError: the thread is closed.
            asyncio.CancelledError: `cancel` was called.
        """
        call = _Call(coroutine)
        self._calls.add(call)
        loop: asyncio.AbstractEventLoop | None = None
        try:
            loop = self._start()
            loop.call_soon_threadsafe(call.start)
            result = call.results.get()
        except BaseException:
            self._cancel(call)
            if loop is not None and not loop.is_closed() and not call.ended.wait(self._stop_within_s):
                self._is_stuck = True
                log.warning("The interrupted requests to the cluster have not ended within %.0f s", self._stop_within_s)
            raise
        finally:
            if call.task is None:
                coroutine.close()
            self._calls.discard(call)
        return result()

    def cancel(self, within_s: float) -> None:
        """Cancel the coroutines that run, and wait up to `within_s` seconds for their end.

        A signal handler may call this while the thread that it interrupts is in `run`.
        """
        calls = list(self._calls)
        for call in calls:
            self._cancel(call)
        for call in calls:
            call.ended.wait(within_s / len(calls))

    def close(self) -> None:
        """Cancel what still runs, exit `contexts`, and end the thread. Safe to repeat."""
        thread = self._thread
        if thread is None or thread.ident is None:
            return
        self._is_ready.wait()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stop.set)
        if not self._is_stuck:
            thread.join(self._stop_within_s)

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._thread is None:
            self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="gangjobs", daemon=True)
            self._thread.start()
        self._is_ready.wait()
        assert self._loop is not None
        return self._loop

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_ready.set()
        async with self.contexts:
            await self._stop.wait()
            running = [call.task for call in self._calls if call.task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _cancel(self, call: _Call[T]) -> None:
        call.is_cancelled = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.cancel)


class _Call(Generic[T]):
    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self._coroutine = coroutine
        self._context = copy_context()
        self.task: asyncio.Task[T] | None = None
        self.is_cancelled = False
        self.ended = threading.Event()
        # `SimpleQueue.get` is a single call in C, which a signal handler's exception cannot leave half done.
        self.results: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def start(self) -> None:
        """Start the coroutine. Called on the loop."""
        if self.is_cancelled:
            self._end(_raise_cancelled)
            return
        self.task = asyncio.get_running_loop().create_task(self._coroutine, context=self._context)
        self.task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Cancel the coroutine. Called on the loop, possibly before `start` or after the end."""
        if self.task is not None:
            self.task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that nobody retrieves, as after an interrupted wait
        self._end(task.result)

    def _end(self, result: Callable[[], T]) -> None:
        self.results.put(result)
        self.ended.set()


def _raise_cancelled() -> NoReturn:
    raise asyncio.CancelledError


class GangSession:
    """The service of one cluster on an event loop in a thread of its own."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        connect: Callable[[ClusterConfig], AbstractAsyncContextManager[GangService]] = GangService.connect,
    ) -> None:
        self._config = config
        self._connect = connect
        self._thread = EventLoopThread()
        self._service: GangService | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, action: Callable[[GangService], Awaitable[T]]) -> T:
        """Run `action` on the event loop, and block until it is done, as `EventLoopThread.run` does."""
        return self._thread.run(self._call(action))

    def cancel(self, within_s: float) -> None:
        """Cancel the calls that run, and wait up to `within_s` seconds for their end. For signal handlers."""
        self._thread.cancel(within_s)

    def close(self) -> None:
        """Close the client and end the thread. Safe to repeat."""
        self._thread.close()

    async def _call(self, action: Callable[[GangService], Awaitable[T]]) -> T:
        if self._service is None:
            self._service = await self._thread.contexts.enter_async_context(self._connect(self._config))
        return await action(self._service)
