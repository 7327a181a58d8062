"""Processes that share one event loop in virtual time, and that stop at a chosen request and wake late.

SIGSTOP stops a process with all requests and watches of its clients. Each process has informers, clients, and
caches of its own, as if it had a loop of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_gangjobs.cluster import loop_local
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.informer import InformerFactory
from tests.crashes import Crash, InterceptedClient
from tests.provider.virtual_control_plane import loop_clock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

T = TypeVar("T")

_CURRENT: Final[ContextVar[Process | None]] = ContextVar("process", default=None)


class Process:
    """One process of Airflow: a worker, or a triggerer.

    Attributes:
        requests: what the process has sent until then, such as `POST jobs`.
        stops_at: the request before or after which the process is stopped.
        stopped: set when the process has been stopped.

    :param request_s: How long each request takes, in seconds.
    """

    def __init__(
        self,
        config: ClusterConfig,
        name: str,
        stops_at: Crash | None = None,
        *,
        request_s: float = 0.0,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.request_s = request_s
        self.name = name
        self.stops_at = stops_at
        self.requests: list[str] = []
        self.stopped = asyncio.Event()
        self._on_stop = on_stop
        self._continues = asyncio.Event()
        self._continues.set()
        self._is_closed = False
        self._terminates_with: type[BaseException] | None = None
        self._clients: list[Client] = []
        self._informers = InformerFactory(connect=self.client, clock=loop_clock())
        _share_per_process()[self, InformerFactory] = self._informers

    def client(self, config: ClusterConfig | None = None) -> Client:
        """Return a new client of this process."""
        client = _ProcessClient(Client(config or self.config, clock=loop_clock()), self)
        self._clients.append(client)
        return client

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        token = _CURRENT.set(self)
        try:
            return asyncio.create_task(coroutine, name=self.name)
        finally:
            _CURRENT.reset(token)

    def stop(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self._continues.clear()
        self.stopped.set()
        self._on_stop()

    def wake(self, *, terminate_with: type[BaseException] | None = None) -> None:
        """Continue the process, as SIGCONT does.

        :param terminate_with: What the process raises at the request at which it was stopped, as a handler of SIGTERM.
        """
        if not self._continues.is_set():
            self._terminates_with = terminate_with
            self._continues.set()

    async def reach(self, point: Crash | None = None) -> None:
        """Stop here if the process stops at this point, and wait until the process continues.

        A stopped process cannot be interrupted: a timer that has expired meanwhile does not keep a request that was
        due from being sent. Of what may happen when a process wakes, this is the more dangerous order.
        """
        if point is not None and point == self.stops_at:
            self.stop()
        while not self._continues.is_set():
            try:
                await self._continues.wait()
            except asyncio.CancelledError:
                if self._is_closed:
                    raise
        if self._terminates_with is not None:
            error, self._terminates_with = self._terminates_with, None
            raise error

    async def send(self, request: str, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request, before and after which the process may stop."""
        number = len(self.requests)
        self.requests.append(request)
        await self.reach(Crash(number, applied=False))
        try:
            await asyncio.sleep(self.request_s)
            return await send()
        finally:
            await self.reach(Crash(number, applied=True))

    async def close(self) -> None:
        """End the process."""
        self._is_closed = True
        self._continues.set()
        await self._informers.aclose()
        for client in self._clients:
            await client.aclose()


def current_process() -> Process:
    """Return the process whose code runs."""
    process = _CURRENT.get()
    assert process is not None, "no process runs"
    return process


class _ProcessClient(InterceptedClient):
    def __init__(self, client: Client, process: Process) -> None:
        super().__init__(client)
        self._process = process

    async def send_through(self, number: int, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        return await self._process.send(request, send)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncGenerator[bytes, None]:
        await self._process.reach()
        async with aclosing(super().watch(*args, **kwargs)) as parts:
            async for lines in parts:
                await self._process.reach()
                yield lines


class _StateByProcess(dict[Any, Any]):
    """The state of a loop (`cluster.loop_local`), which each process has for itself."""

    def __contains__(self, factory: object) -> bool:
        return super().__contains__((_CURRENT.get(), factory))

    def __getitem__(self, factory: Any) -> Any:
        return super().__getitem__((_CURRENT.get(), factory))

    def __setitem__(self, factory: Any, instance: Any) -> None:
        key = factory if isinstance(factory, tuple) else (_CURRENT.get(), factory)
        super().__setitem__(key, instance)


def _share_per_process() -> dict[Any, Any]:
    """Return the state of the running loop, separated by process from now on."""
    loop = asyncio.get_running_loop()
    state = loop_local._STATE.setdefault(loop, {})
    if not isinstance(state, _StateByProcess):
        separate = _StateByProcess()
        for factory, instance in state.items():
            separate[None, factory] = instance
        state = loop_local._STATE[loop] = separate
    return state
