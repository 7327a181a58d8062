"""A session: one client of a cluster, kept open for code that is not asynchronous.

The first call connects. All calls use the same event loop, the same client and its TLS connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from airflow_provider_gangjobs.hooks.event_loop import EventLoopThread
from airflow_provider_gangjobs.service import GangService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

T = TypeVar("T")


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


__all__ = ["GangSession"]
