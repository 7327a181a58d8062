"""A process that dies at a chosen request, before or after the server has applied it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from tests.provider.plane import timing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig


class Died(BaseException):
    """The process is no more. Nothing that it would have done afterwards happens."""


@dataclass(frozen=True)
class Crash:
    """Death at the n-th request, counted from 0."""

    at: int
    applied: bool

    def __str__(self) -> str:
        return f"{'after' if self.applied else 'before'} request {self.at}"


class Mortal(Client):
    """A client whose process dies once; `requests` lists what was sent until then."""

    def __init__(self, config: ClusterConfig, crash: Crash | None = None) -> None:
        super().__init__(config, timing=timing())
        self.crash = crash
        self.requests: list[str] = []

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        return await self._mortally(f"GET {args[0].plural}", lambda: Client.get(self, *args, **kwargs))

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        return await self._mortally(f"POST {args[0].plural}", lambda: Client.create(self, *args, **kwargs))

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        return await self._mortally(f"PATCH {args[0].plural}", lambda: Client.patch(self, *args, **kwargs))

    async def list_page(self, *args: Any, **kwargs: Any) -> Any:
        return await self._mortally(f"LIST {args[0].plural}", lambda: Client.list_page(self, *args, **kwargs))

    async def _mortally(self, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        number = len(self.requests)
        self.requests.append(request)
        dies = self.crash is not None and number >= self.crash.at
        if dies and not (self.crash and self.crash.applied and number == self.crash.at):
            raise Died
        answer = await send()
        if dies:
            raise Died
        return answer
