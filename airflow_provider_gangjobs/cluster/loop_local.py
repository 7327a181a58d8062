"""What belongs to one event loop: state that is dropped with the loop, wake-ups of its waiters, and cached answers.

Connections, locks, and tasks belong to a loop, so they cannot be shared between loops. A triggerer process has one
loop, on which all its triggers run, and a worker process has one loop after another.

`Notification` is an event for one waiter. `asyncio.Event` within `asyncio.timeout` does the same for any number of
waiters, but takes 1.5 kB for each, and most of ten thousand waiting gangs wait for hours. One moment may notify all of
them: a first list, a reconnect, or a shared deadline. An event loop runs all ready callbacks before it polls its timers
and sockets, so each iteration of the loop wakes a limited number of waiters.

`CachedRead` keeps the answer of a cluster for a while, so that many callers cost the cluster one request. One caller
reads at a time, and the callers that wait take its answer. A read that raises leaves no answer, and the next caller
reads again. A read that is of use only if the cluster answers soon has an answer for the other case, such as `None` for
unknown. This answer is kept like any other, also if the caller is cancelled, so that a slow cluster is not asked again
by each caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_gangjobs.cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable

    from airflow_provider_gangjobs.cluster.client import Client


T = TypeVar("T")

_STATE: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]] = WeakKeyDictionary()


def loop_local(factory: Callable[[], T]) -> T:
    """Return the running loop's only instance of `factory`. The first call on a loop creates the instance."""
    state = _STATE.setdefault(asyncio.get_running_loop(), {})
    if factory not in state:
        state[factory] = factory()
        _drop_closed_loops()
    instance: T = state[factory]
    return instance


def set_loop_local(factory: Callable[[], T], instance: T) -> None:
    """Make `instance` the running loop's instance of `factory`, for a program with settings of its own.

    Call this before the first use: code that already uses another instance keeps it.
    """
    _STATE.setdefault(asyncio.get_running_loop(), {})[factory] = instance


def _drop_closed_loops() -> None:
    """Drop the state of closed loops. The state may refer to its loop, so the weak key alone would keep both alive.

    Other threads may add the states of their loops meanwhile.
    """
    for loop in [reference() for reference in _STATE.keyrefs()]:
        if loop is not None and loop.is_closed():
            _STATE.pop(loop, None)


class _BackgroundTasks(set["asyncio.Task[Any]"]):
    """References to tasks that nobody awaits. The event loop itself keeps only weak ones."""


def run_in_background(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Return a task that runs the coroutine, and that may outlive its caller."""
    task, tasks = asyncio.create_task(coroutine, name=name), loop_local(_BackgroundTasks)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


CLIENT: Final = ("airflow_provider_gangjobs.cluster.config", "airflow_provider_gangjobs.cluster.client")
"""What is imported to read the configuration of a cluster and to send the first requests."""
_imported: set[str] = set()
"""Modules whose import is complete. `sys.modules` contains a module from the beginning of its import."""


async def import_in_thread(*names: str) -> None:
    """Import modules in a thread. Afterwards, an `import` statement of these modules does not block.

    The first gang of a process needs 0.3 s of CPU or more for its imports. The import system makes threads that import
    the same module wait until the import is complete.
    """
    for name in names:
        if name not in _imported:
            await asyncio.to_thread(import_module, name)
            _imported.add(name)


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
    loop_local(_WakeupQueue).enqueue(waiter)


class _WakeupQueue:
    """Wakes the waiters of one event loop in first-in, first-out order, at a limited rate.

    Without the limit, 10,000 gangs that are woken together delay a timer of another trigger by 3 s of CPU, and not by
    30 ms.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._left = WAKEUPS_PER_ITERATION_MAX
        self._is_scheduled = False

    def enqueue(self, waiter: asyncio.Future[None]) -> None:
        """Wake `waiter` now, or in a later iteration of the loop if the limit of this iteration is reached."""
        self._queue.append(waiter)
        self._drain()

    def _drain(self) -> None:
        while self._queue and self._left:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self._is_scheduled = False
        if self._left < WAKEUPS_PER_ITERATION_MAX:
            self._left = WAKEUPS_PER_ITERATION_MAX
            self._drain()


EXPIRY_S: Final = 600.0
"""How long a capability of a cluster is used. An upgrade of the cluster is noticed after this time. Until then, a
request for a removed version fails."""
UNKNOWN_EXPIRY_S: Final = 30.0
"""How long it counts that a capability is unknown."""


class Answer(NamedTuple, Generic[T]):
    """What was read, and for how many seconds it is used."""

    value: T
    lasts_s: float


class _Entry:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.value: Any = None
        self.expires_at = float("-inf")
        self.users = 0


class CachedReads:
    """The answers that one event loop has, by key. An answer that has expired is removed."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_in_use(self) -> bool:
        """Whether a caller waits for an answer now."""
        return any(entry.users for entry in self._entries.values())

    async def get(
        self,
        key: Hashable,
        read: Callable[[], Awaitable[Answer[T]]],
        monotonic: Callable[[], float],
        *,
        accepts: Callable[[T], bool] = lambda _: True,
        within_s: float | None = None,
        unanswered: Answer[T] | None = None,
    ) -> T:
        """Return what was read by this key, from a read of this caller or of another one.

        :param monotonic: The clock of the caller, in seconds.
        :param accepts: Whether the caller can use a value that was read before. If not, the caller reads.
        :param within_s: How long a read may take, in seconds.
        :param unanswered: The answer if the read takes longer, if it raises `ClusterError` or `ValueError`, or if it is
            cancelled. Without it, these errors are raised, and nothing is kept.
        """
        now = monotonic()
        self._entries = {k: entry for k, entry in self._entries.items() if entry.users or now < entry.expires_at}
        entry = self._entries.setdefault(key, _Entry())
        entry.users += 1
        answer = unanswered
        try:
            async with entry.lock:
                if monotonic() < entry.expires_at and accepts(entry.value):
                    value: T = entry.value
                    return value
                try:
                    with suppress(*(() if unanswered is None else (TimeoutError, ClusterError, ValueError))):
                        async with asyncio.timeout(within_s):
                            answer = await read()
                finally:
                    if answer is not None:
                        entry.value, entry.expires_at = answer.value, monotonic() + answer.lasts_s
                assert answer is not None, "without an answer, the error was raised"
                return answer.value
        finally:
            entry.users -= 1


async def cached_read(
    client: Client,
    kind: tuple[Hashable, ...],
    read: Callable[[], Awaitable[Answer[T]]],
    *,
    accepts: Callable[[T], bool] = lambda _: True,
    within_s: float | None = None,
    unanswered: Answer[T] | None = None,
) -> T:
    """Return what was read of a cluster in the running loop. See `CachedReads.get`.

    :param kind: What is read, and its parameters.
    """
    return await loop_local(CachedReads).get(
        (client.config.key, *kind),
        read,
        client.clock.monotonic,
        accepts=accepts,
        within_s=within_s,
        unanswered=unanswered,
    )
