"""The crash harness: a process that stops at a chosen request, before or after the API server has applied the request.

requests = CrashingClient(client)           # counts the requests of a process that lives
...
for crash in crash_points(requests.requests):
    process = CrashingClient(client, crash)
    with dies(process):                     # fails if the process does not reach its crash
        await submit(process, spec)
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

    from airflow_provider_gangjobs.kube.resources import Resource


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

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Any:
        # The client's own `get` calls `get_raw`, which would count the request twice.
        path = resource.path(namespace, name)
        return await self._send(f"GET {resource.plural}", lambda: Client.get_raw(self, path))

    async def get_raw(self, *args: Any, **kwargs: Any) -> Any:
        return await self._send(f"GET {args[0]}", lambda: Client.get_raw(self, *args, **kwargs))

    async def api_groups(self) -> Any:
        return await self._send("GET /apis", lambda: Client.api_groups(self))

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
        has_died: whether the process has reached its crash.
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
        self.has_died = False
        self._error = error
        self._after_request = after_request

    async def send_through(self, number: int, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        fails = self.crash is not None and self._fails(number, self.crash)
        if fails and not (self.crash and self.crash.applied and number == self.crash.at):
            raise self._stop()
        answer = await send()
        if fails:
            raise self._stop()
        self._after_request()
        return answer

    def _stop(self) -> BaseException:
        error = self._error()
        self.has_died |= isinstance(error, ProcessDied)
        return error

    def _fails(self, number: int, crash: Crash) -> bool:
        """A process that has died sends no more requests."""
        return number == crash.at or (self._error is ProcessDied and number > crash.at)


class CrashingAtFirst(CrashingClient):
    """A client whose process stops at the first request of some kinds, whenever that is.

    Attributes:
        request: the request, such as `PATCH jobs`; empty until then.
    """

    def __init__(self, client: Client, kinds: Collection[str], *, applied: bool) -> None:
        """
        :param kinds: The kinds of requests, such as `PATCH jobs`.
        :param applied: Whether the API server still applies the request.
        """
        super().__init__(client)
        self.request = ""
        self._kinds = kinds
        self._applied = applied

    async def send_through(self, number: int, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        if self.crash is None and request in self._kinds:
            self.crash, self.request = Crash(number, self._applied), request
        return await super().send_through(number, request, send)


@contextmanager
def may_die(process: CrashingClient) -> Iterator[None]:
    """Continue after the block if the process stops at its crash in the block. It may also never send that request."""
    stopped = False
    try:
        yield
    except* ProcessDied:
        stopped = True
    assert stopped == process.has_died, f"something has caught the end of the process {process.crash}"


@contextmanager
def dies(process: CrashingClient) -> Iterator[None]:
    """Continue after the block when the process stops at its crash in the block. It must not survive."""
    with may_die(process):
        yield
    assert process.has_died, f"the process survived {process.crash}: {process.requests}"


def check_each_kind_was_reached(processes: Sequence[CrashingClient], requests: Sequence[str]) -> None:
    """Assert that for each kind of these requests, processes have died before and after a request of that kind.

    A process that polls may send fewer requests than the process whose requests were counted, so that it survives the
    crash at one of its last polls.
    """
    reached = {(one.requests[one.crash.at], one.crash.applied) for one in processes if one.crash and one.has_died}
    assert reached == {(requests[crash.at], crash.applied) for crash in crash_points(requests)}
