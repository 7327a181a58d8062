"""The crash harness: a process that stops at a chosen request, before or after the API server has applied the request.

requests = CrashingClient(client)           # counts the requests of a process that lives
...
for crash in crash_points(requests.requests):
    with pytest.raises(ProcessDied):
        await submit(CrashingClient(client, crash), spec)
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence


class ProcessDied(BaseException):
    """The process has ended. Nothing that it would have done afterwards happens, so no `except Exception` sees this."""


@dataclass(frozen=True)
class Crash:
    """Where a process stops.

    Attributes:
        at: number of the request, counted from 0.
        applied: whether the API server still applies that request.
    """

    at: int
    applied: bool

    def __str__(self) -> str:
        return f"{'after' if self.applied else 'before'} request {self.at}"


def crash_points(requests: Sequence[str]) -> list[Crash]:
    """Every place at which a process that sends these requests can stop."""
    return [Crash(at, applied) for at in range(len(requests)) for applied in (False, True)]


class InterceptedClient(Client):
    """A client that calls `send_through` for each request, instead of sending the request itself.

    The requests go over the connections of the client that is given, which stays open and usable. Watches and logs are
    not intercepted.

    Attributes:
        requests: what was sent until then, such as `POST jobs`.
    """

    def __init__(self, client: Client) -> None:
        self.__dict__.update(client.__dict__)
        self.requests: list[str] = []

    async def send_through(self, number: int, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send a request and return its answer. The number counts the requests of this client from 0."""
        return await send()

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        return await self._send(f"GET {args[0].plural}", lambda: Client.get(self, *args, **kwargs))

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        return await self._send(f"POST {args[0].plural}", lambda: Client.create(self, *args, **kwargs))

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        return await self._send(f"PATCH {args[0].plural}", lambda: Client.patch(self, *args, **kwargs))

    async def delete(self, *args: Any, **kwargs: Any) -> Any:
        return await self._send(f"DELETE {args[0].plural}", lambda: Client.delete(self, *args, **kwargs))

    async def list_page(self, *args: Any, **kwargs: Any) -> Any:
        return await self._send(f"LIST {args[0].plural}", lambda: Client.list_page(self, *args, **kwargs))

    async def _send(self, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        number = len(self.requests)
        self.requests.append(request)
        return await self.send_through(number, request, send)


class CrashingClient(InterceptedClient):
    """A client whose process stops at a request; without a crash, a client that counts its requests.

    Attributes:
        crash: where the process stops; assign None to let a next process use the client.
    """

    def __init__(
        self,
        client: Client,
        crash: Crash | None = None,
        *,
        error: Callable[[], BaseException] = ProcessDied,
        after_request: Callable[[], None] = lambda: None,
    ) -> None:
        """
        :param error: What the request raises instead. After any error but `ProcessDied` the process goes on.
        :param after_request: Called after each answer, for what happens in the cluster at that time.
        """
        super().__init__(client)
        self.crash = crash
        self._error = error
        self._after_request = after_request

    async def send_through(self, number: int, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        fails = self.crash is not None and self._fails(number, self.crash)
        if fails and not (self.crash and self.crash.applied and number == self.crash.at):
            raise self._error()
        answer = await send()
        if fails:
            raise self._error()
        self._after_request()
        return answer

    def _fails(self, number: int, crash: Crash) -> bool:
        """A process that has died sends no more requests."""
        return number == crash.at or (self._error is ProcessDied and number > crash.at)


@contextmanager
def dies_if_reached(process: CrashingClient) -> Iterator[None]:
    """Expect that the process dies at its crash.

    A process that polls may send fewer requests than the process whose requests were counted. If it never sends the
    request of its crash, it lives on.
    """
    try:
        yield
    except (ProcessDied, BaseExceptionGroup):
        return
    assert process.crash is not None
    assert len(process.requests) <= process.crash.at, f"the process survived {process.crash}"
