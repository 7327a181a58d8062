"""Sends one HTTP request to an API server: adds credentials, reads the body, and translates errors.

The only retry is the one after a 401. An error says what the caller has to know: either the request was never sent
(`Unreachable`), or the server may have applied the request (`ReplyLost`). Log lines and errors contain only the
method, path, status, and reason.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
import yarl

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    ReplyLost,
    TlsFailed,
    TransportError,
    UnexpectedReply,
    Unreachable,
    error_from_reply,
)
from airflow_provider_gangjobs.cluster.http.bulk_patch import BulkPatch, Endpoint
from airflow_provider_gangjobs.cluster.http.lines import LineTooLongError
from airflow_provider_gangjobs.cluster.http.log_tail import TailBuffer
from airflow_provider_gangjobs.cluster.http.stream_reader import read_batched
from airflow_provider_gangjobs.cluster.server_clock import ServerClock

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials

USER_AGENT = f"airflow-provider-gangjobs/{__version__}"
"""The API server records the part before the slash as the field manager of written objects."""

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
REQUEST_CONNECTIONS_MAX = 100
"""Limits the requests in flight to one cluster. Streams have their own connections, which informers limit."""

_READ_BUFFER_BYTES = 2**18
_KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""An idle watch notices within 90 s that its peer has vanished without closing the connection."""

T = TypeVar("T")
Query = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Request:
    """One HTTP request. `str(request)` is safe to log."""

    method: str
    path: str
    query: Query | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def url(self, base_url: str) -> yarl.URL:
        query = _query_string(self.query) if self.query else ""
        return yarl.URL(f"{base_url}{self.path}{query}", encoded=True)


class Transport:
    """Two connection pools to one API server, for requests and for streams. Each opens at its first use."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        tcp_keepalive: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._monotonic = monotonic
        self.server_clock = ServerClock(monotonic)
        self._tcp_keepalive = tcp_keepalive
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are closed, so that the loop may end. Safe to repeat."""
        sessions = [s for s in (self._requests, self._streams) if s is not None]
        self._requests = self._streams = None
        for session in sessions:
            await session.close()
        # A TLS stream that was not read to its end is shut down only after its session has forgotten the stream.
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + CLOSE_TIMEOUT_S
        while any(made.fileno() >= 0 for made in self._sockets) and loop.time() < give_up_at:  # noqa: ASYNC110 - sockets have no close event
            await asyncio.sleep(0.002)

    async def send(self, request: Request, *, timeout_s: float) -> bytes:
        """Send a request and return the body of the successful response.

        Raises:
            ApiError: the server refused the request.
            TransportError: no complete response arrived within `timeout_s`.
        """
        async with self._successful(request, timeout_s) as response:
            return await response.read()

    async def send_for_end(self, request: Request, *, timeout_s: float, bytes_max: int) -> TailBuffer:
        """Send a request and return the last `bytes_max` bytes of the body of the successful response.

        Raises:
            ApiError, TransportError: as for `send`.
        """
        end = TailBuffer(bytes_max)
        async with self._successful(request, timeout_s) as response:
            async for chunk in response.content.iter_any():
                end.feed(chunk)
        return end

    @asynccontextmanager
    async def _successful(self, request: Request, timeout_s: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the successful response, its body unread."""
        if self._requests is None:
            self._requests = self._session(limit=REQUEST_CONNECTIONS_MAX)
        with _translated_errors(request):
            response = await self._send_authenticated(self._requests, request, _timeout(timeout_s))
            async with response:
                if response.status >= 300:
                    raise await _error_from_response(request, response)
                yield response

    async def bulk_patch(
        self,
        method: str,
        requests: Iterator[tuple[T, str, bytes]],
        on_success: Callable[[T], None],
        *,
        content_type: str,
        accept: str,
        success_statuses: Container[int],
        connections: int,
        timeout_s: float,
    ) -> BulkPatch[T] | None:
        """Send many small writes and return their results, or `None` if a plain connection cannot reach the server.

        See `bulk_patch.BulkPatch` for the parameters.
        """
        access = self._credentials.cached or await self._credentials.current()
        headers = {"User-Agent": USER_AGENT, "Accept": accept, "Content-Type": content_type}
        endpoint = Endpoint.from_access(access, headers)
        if endpoint is None:
            return None
        batch = BulkPatch(endpoint, method, requests, on_success, success_statuses, timeout_s)
        await batch.run(connections)
        return batch

    @asynccontextmanager
    async def stream(
        self, request: Request, *, idle_timeout_s: float, open_timeout_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and yield an iterator over the chunks of the response, once its head has arrived.

        Raises:
            ApiError: the server refused the request.
            ReplyLost: no head arrived within `open_timeout_s`, or no data for `idle_timeout_s`.
        """
        if self._streams is None:
            self._streams = self._session(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        with _translated_errors(request):
            async with asyncio.timeout(open_timeout_s or idle_timeout_s):
                response = await self._send_authenticated(self._streams, request, timeout)
            async with response:
                if response.status >= 300:
                    raise await _error_from_response(request, response)
                yield read_batched(response, idle_timeout_s=idle_timeout_s)

    async def _send_authenticated(
        self, session: aiohttp.ClientSession, request: Request, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Return the response with any status, its body unread. A 401 is retried once with renewed credentials."""
        access = self._credentials.cached or await self._credentials.current()
        response = await self._send_once(session, request, timeout, access)
        if response.status == 401:
            return await self._resend_renewed(session, request, timeout, access, response)
        return response

    async def _resend_renewed(
        self,
        session: aiohttp.ClientSession,
        request: Request,
        timeout: aiohttp.ClientTimeout,
        refused: Access,
        response: aiohttp.ClientResponse,
    ) -> aiohttp.ClientResponse:
        """Send the request again if there are new credentials. A 401 means that it was not processed."""
        try:
            renewed = await self._credentials.renew(refused)
        except BaseException:
            response.close()
            raise
        if renewed is refused:
            return response
        response.release()
        return await self._send_once(session, request, timeout, renewed)

    async def _send_once(
        self, session: aiohttp.ClientSession, request: Request, timeout: aiohttp.ClientTimeout, access: Access
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": request.accept, "User-Agent": USER_AGENT}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if access.authorization:
            headers["Authorization"] = access.authorization
        sent_at = self._monotonic()
        response = await session.request(
            request.method,
            request.url(access.base_url),
            data=request.body,
            headers=headers,
            timeout=timeout,
            ssl=access.ssl if access.ssl is not None else True,
            proxy=access.proxy,
            server_hostname=access.server_hostname,
            allow_redirects=False,
        )
        self.server_clock.observe(response.headers.get("Date"), sent_at=sent_at)
        return response

    def _session(self, *, limit: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=limit, socket_factory=self._socket)
        session = aiohttp.ClientSession(
            connector=connector, read_bufsize=_READ_BUFFER_BYTES, cookie_jar=aiohttp.DummyCookieJar()
        )
        # aiohttp sends a GET or DELETE again by itself if its connection breaks, and has no public switch for that.
        session._retry_connection = False  # noqa: SLF001
        return session

    def _socket(self, address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family=family, type=kind, proto=protocol)
        self._sockets.add(made)
        if self._tcp_keepalive:
            keep_alive(made)
        return made


def keep_alive(made: socket.socket) -> None:
    """Let the operating system notice that the peer has vanished."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS:
        option = getattr(socket, name, None)
        if option is not None and sys.platform != "win32":
            made.setsockopt(socket.IPPROTO_TCP, option, value)


class _translated_errors:  # noqa: N801 - reads as a statement
    """Translates exceptions of aiohttp into errors of `cluster.errors`."""

    def __init__(self, request: Request) -> None:
        self._exchange = request

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is None:
            return
        if isinstance(exc, LineTooLongError):
            raise UnexpectedReply(200, request=str(self._exchange), message=str(exc)) from exc
        if isinstance(exc, aiohttp.ClientError | asyncio.TimeoutError | OSError):
            raise _transport_error(str(self._exchange), exc) from exc


async def _error_from_response(request: Request, response: aiohttp.ClientResponse) -> ApiError:
    return error_from_reply(
        response.status,
        await response.content.read(_READ_BUFFER_BYTES),
        request=str(request),
        retry_after=response.headers.get("Retry-After"),
    )


@lru_cache(maxsize=16)
def _timeout(total_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S)


_NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)
_TLS_ERRORS = (
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ClientConnectorSSLError,
    aiohttp.ServerFingerprintMismatch,
)


def _transport_error(request: str, exc: BaseException) -> TransportError:
    evidence = f"{type(exc).__name__}: {exc}".rstrip(": ")
    if isinstance(exc, _TLS_ERRORS):
        return TlsFailed(request, evidence)
    if isinstance(exc, _NEVER_SENT):
        return Unreachable(request, evidence)
    return ReplyLost(request, evidence)


def _query_string(query: Query) -> str:
    present = {k: _query_value(v) for k, v in query.items() if v is not None}
    return f"?{urlencode(present)}" if present else ""


def _query_value(value: str | float | bool) -> str:
    # The API server parses booleans as Go does and accepts "True", but other servers of the same API may not.
    return str(value).lower() if isinstance(value, bool) else str(value)
