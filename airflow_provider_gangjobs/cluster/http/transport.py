"""What a client needs of HTTP: one request with credentials, its response, and the errors of both.

`Transport` has the rules that hold for every HTTP library: the only retry is the one after a 401; an error says what
the caller has to know: either the request was never sent (`Unreachable`), or the server may have applied the request
(`ReplyLost`); log lines and errors contain only the method, path, status, and reason. A subclass sends one request
over its library.
"""

from __future__ import annotations

import asyncio
import socket
import time
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_gangjobs.cluster.clock import ServerClock
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    TransportError,
    UnexpectedReply,
    Unreachable,
    error_from_reply,
)
from airflow_provider_gangjobs.cluster.http.log_reader import LineTooLongError, TailBuffer
from airflow_provider_gangjobs.cluster.http.request import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials
    from airflow_provider_gangjobs.cluster.http.request import Request

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
READ_BUFFER_BYTES = 2**18
ERROR_BYTES_MAX = 2**18
BODY_BYTES_MAX = 2**30
"""More than a page of 500 objects of the largest size that etcd stores (1.5 MiB)."""

KEEPALIVE_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    ),
)
"""Socket options by which an idle watch notices within 90 s that its peer has vanished without closing the
connection."""


class Response(Protocol):
    """A response whose head has arrived."""

    @property
    def status(self) -> int: ...

    def header(self, name: str) -> str | None: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the decoded body. Fails when the request has taken longer than its `timeout_s`."""

    def stream(self, idle_timeout_s: float) -> AsyncIterator[bytes]:
        """Yield the decoded body as it arrives. Raises TimeoutError when nothing arrives for `idle_timeout_s`."""

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end, and close the connection otherwise."""


class Transport(ABC):
    """Sends requests to one API server. Connects at the first request, and belongs to one event loop."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        tcp_keepalive: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._tcp_keepalive = tcp_keepalive
        self._monotonic = monotonic
        self.server_clock = ServerClock(monotonic)
        self.server_software = ""
        """The header `Server` of the last response."""
        self._last_route: tuple[Access, Route] | None = None

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are closed, so that the loop may end. Safe to repeat."""

    def _route(self, access: Access, request: Request) -> Route:
        """Return how to reach the API server. URLs are parsed once for each `access`.

        Raises:
            Unreachable: the URL of the proxy is not usable.
        """
        if self._last_route is None or self._last_route[0] is not access:
            try:
                self._last_route = access, Route.of(access)
            except ValueError as exc:
                raise Unreachable(str(request), f"the URL of the proxy is not usable: {exc}") from exc
        return self._last_route[1]

    @abstractmethod
    async def _send_once(self, request: Request, access: Access, timeout_s: float | None) -> Response:
        """Send a request with the credentials of `access` and return the response with any status, its body unread.

        :param timeout_s: The limit of the whole exchange, including the body. `None` for a stream.
        """

    @abstractmethod
    def _classify(self, exc: BaseException) -> type[TransportError] | None:
        """Return the error that an exception of the library stands for, or `None` if it is none of the network."""

    async def send(self, request: Request, *, timeout_s: float, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Send a request and return the body of the successful response.

        Raises:
            ApiError: the server refused the request.
            TransportError: no complete response arrived within `timeout_s`.
            UnexpectedReply: the body has more than `bytes_max` bytes.
        """
        body: list[bytes] = []
        async with self._successful(request, timeout_s=timeout_s) as response:
            async for chunk in response.chunks():
                body.append(chunk)
                bytes_max -= len(chunk)
                if bytes_max < 0:
                    raise UnexpectedReply(response.status, request=str(request), message="the response is too long")
        return body[0] if len(body) == 1 else b"".join(body)

    async def send_for_end(self, request: Request, *, timeout_s: float, bytes_max: int) -> TailBuffer:
        """Send a request and return the last `bytes_max` bytes of the body of the successful response.

        Raises:
            ApiError, TransportError: as for `send`.
        """
        end = TailBuffer(bytes_max)
        async with self._successful(request, timeout_s=timeout_s) as response:
            async for chunk in response.chunks():
                end.feed(chunk)
        return end

    @asynccontextmanager
    async def stream(
        self, request: Request, *, idle_timeout_s: float, open_timeout_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and yield an iterator over the chunks of the response, once its head has arrived.

        Raises:
            ApiError: the server refused the request.
            ReplyLost: no head arrived within `open_timeout_s`, or no data for `idle_timeout_s`.
        """
        open_timeout_s = idle_timeout_s if open_timeout_s is None else open_timeout_s
        async with self._successful(request, open_timeout_s=open_timeout_s) as response:
            yield response.stream(idle_timeout_s)

    @asynccontextmanager
    async def _successful(
        self, request: Request, *, timeout_s: float | None = None, open_timeout_s: float | None = None
    ) -> AsyncIterator[Response]:
        """Send a request and yield the successful response, its body unread."""
        with _TranslatedErrors(request, self._classify):
            async with asyncio.timeout(open_timeout_s):
                response = await self._send_for_success(request, timeout_s)
            try:
                yield response
            finally:
                await response.aclose()

    async def _send_for_success(self, request: Request, timeout_s: float | None) -> Response:
        response = await self._send_authenticated(request, timeout_s)
        if response.status < 300:
            return response
        try:
            raise await _error_from_response(request, response)
        finally:
            await response.aclose()

    async def _send_authenticated(self, request: Request, timeout_s: float | None) -> Response:
        """Return the response with any status. A 401 is retried once if there are new credentials.

        A 401 means that the request was not processed.
        """
        access = self._credentials.cached or await self._credentials.current()
        response = await self._send_timed(request, access, timeout_s)
        if response.status != 401:
            return response
        try:
            renewed = await self._credentials.renew(access)
        except BaseException:
            await response.aclose()
            raise
        if renewed is access:
            return response
        await response.aclose()
        return await self._send_timed(request, renewed, timeout_s)

    async def _send_timed(self, request: Request, access: Access, timeout_s: float | None) -> Response:
        sent_at = self._monotonic()
        response = await self._send_once(request, access, timeout_s)
        self.server_clock.observe(response.header("Date"), sent_at=sent_at)
        self.server_software = response.header("Server") or ""
        return response


def describe_exception(exc: BaseException) -> str:
    """Return the class and the text of an exception, as the evidence of an error."""
    return f"{type(exc).__name__}: {exc}".rstrip(": ")


class _TranslatedErrors:
    """Translates exceptions of an HTTP library into errors of `cluster.errors`."""

    def __init__(self, request: Request, classify: Callable[[BaseException], type[TransportError] | None]) -> None:
        self._exchange = request
        self._classify = classify

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is None:
            return
        if isinstance(exc, LineTooLongError):
            raise UnexpectedReply(200, request=str(self._exchange), message=str(exc)) from exc
        error = self._classify(exc)
        if error is not None:
            raise error(str(self._exchange), describe_exception(exc)) from exc


async def _error_from_response(request: Request, response: Response) -> ApiError:
    body = bytearray()
    async for chunk in response.chunks():
        body += chunk
        if len(body) >= ERROR_BYTES_MAX:
            break
    retry_after = response.header("Retry-After")
    return error_from_reply(response.status, bytes(body), request=str(request), retry_after=retry_after)
