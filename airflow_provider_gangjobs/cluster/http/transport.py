"""One HTTP exchange with an API server: credentials on, errors mapped, bodies read. No retry but one after a 401.

A failure is sorted by the one thing a caller must know: was the request never sent (Unreachable), or may it
have been applied (ReplyLost)? Only method, path, status and reason are ever logged or put into an error.
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
from airflow_provider_gangjobs.cluster.http.bulk_patch import Express, Line
from airflow_provider_gangjobs.cluster.http.lines import LineTooLongError
from airflow_provider_gangjobs.cluster.http.log_tail import TailBuffer
from airflow_provider_gangjobs.cluster.http.stream_reader import in_gulps
from airflow_provider_gangjobs.cluster.server_clock import ServerClock

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials

USER_AGENT = f"airflow-provider-gangjobs/{__version__}"
"""The API server records the part before the slash as the field manager of what we write."""

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
REQUEST_CONNECTIONS_MAX = 100
"""Requests in flight to one cluster; streams have connections of their own and are bounded by their informers."""

_READ_BUFFER_BYTES = 2**18
_KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""A peer that vanished without a word is noticed within 90 s also by an idle watch."""

T = TypeVar("T")
Query = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Exchange:
    """One request, with everything that makes it what it is. `str()` of it is safe to log."""

    method: str
    path: str
    query: Query | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def url(self, base_url: str) -> yarl.URL:
        suffix = _suffix(self.query) if self.query else ""
        return yarl.URL(f"{base_url}{self.path}{suffix}", encoded=True)


class Transport:
    """Two connection pools (requests, streams) to one API server, opened at the first use."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        tcp_keepalive: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._monotonic = monotonic
        self.clock = ServerClock(monotonic)
        self._tcp_keepalive = tcp_keepalive
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def aclose(self) -> None:
        """Close all connections; safe to repeat. Afterwards no socket is open, so that the loop may end."""
        sessions = [s for s in (self._requests, self._streams) if s is not None]
        self._requests = self._streams = None
        for session in sessions:
            await session.close()
        # A stream that was left midway takes leave of its TLS peer after its session has forgotten it.
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + CLOSE_TIMEOUT_S
        while any(made.fileno() >= 0 for made in self._sockets) and loop.time() < give_up_at:  # noqa: ASYNC110 - they tell nobody
            await asyncio.sleep(0.002)

    async def send(self, exchange: Exchange, *, timeout_s: float) -> bytes:
        """The whole body of a successful answer.

        Raises:
            ApiError: the server refused.
            TransportError: there was no complete answer within `timeout_s`.
        """
        async with self._accepted(exchange, timeout_s) as response:
            return await response.read()

    async def send_for_end(self, exchange: Exchange, *, timeout_s: float, bytes_max: int) -> TailBuffer:
        """The end of the body of a successful answer, however long the body is. Raises as `send` does."""
        end = TailBuffer(bytes_max)
        async with self._accepted(exchange, timeout_s) as response:
            async for chunk in response.content.iter_any():
                end.feed(chunk)
        return end

    @asynccontextmanager
    async def _accepted(self, exchange: Exchange, timeout_s: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of which the head has come, and is not a refusal."""
        if self._requests is None:
            self._requests = self._session(limit=REQUEST_CONNECTIONS_MAX)
        with _mapped_errors(exchange):
            response = await self._answer(self._requests, exchange, _timeout(timeout_s))
            async with response:
                if response.status >= 300:
                    raise await _refusal(exchange, response)
                yield response

    async def express(
        self,
        method: str,
        requests: Iterator[tuple[T, str, bytes]],
        done: Callable[[T], None],
        *,
        content_type: str,
        accept: str,
        hoped: Container[int],
        connections: int,
        timeout_s: float,
    ) -> Express[T] | None:
        """Many small writes at once (see `express`): how it went, or `None` if nothing can be sent in this way."""
        access = self._credentials.at_hand or await self._credentials.current()
        line = Line.to(access, {"User-Agent": USER_AGENT, "Accept": accept, "Content-Type": content_type})
        if line is None:
            return None
        run = Express(line, method, requests, done, hoped, timeout_s)
        await run.run(connections)
        return run

    @asynccontextmanager
    async def stream(
        self, exchange: Exchange, *, silence_s: float, open_timeout_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer as chunks of bytes, from when its head has come.

        Ends with ReplyLost if nothing comes for `silence_s`, or no head within `open_timeout_s`.
        """
        if self._streams is None:
            self._streams = self._session(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        with _mapped_errors(exchange):
            async with asyncio.timeout(open_timeout_s or silence_s):
                response = await self._answer(self._streams, exchange, timeout)
            async with response:
                if response.status >= 300:
                    raise await _refusal(exchange, response)
                yield in_gulps(response, silence_s=silence_s)

    async def _answer(
        self, session: aiohttp.ClientSession, exchange: Exchange, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """The head of the answer, whatever its status; a 401 is met with renewed credentials once."""
        access = self._credentials.at_hand or await self._credentials.current()
        response = await self._ask(session, exchange, timeout, access)
        if response.status == 401:
            return await self._ask_renewed(session, exchange, timeout, access, response)
        return response

    async def _ask_renewed(
        self,
        session: aiohttp.ClientSession,
        exchange: Exchange,
        timeout: aiohttp.ClientTimeout,
        refused: Access,
        response: aiohttp.ClientResponse,
    ) -> aiohttp.ClientResponse:
        """Ask once more with renewed credentials, if there are any; a 401 means that nothing was done."""
        try:
            renewed = await self._credentials.renew(refused)
        except BaseException:
            response.close()
            raise
        if renewed is refused:
            return response
        response.release()
        return await self._ask(session, exchange, timeout, renewed)

    async def _ask(
        self, session: aiohttp.ClientSession, exchange: Exchange, timeout: aiohttp.ClientTimeout, access: Access
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": exchange.accept, "User-Agent": USER_AGENT}
        if exchange.body is not None:
            headers["Content-Type"] = exchange.content_type
        if access.authorization:
            headers["Authorization"] = access.authorization
        sent_at = self._monotonic()
        response = await session.request(
            exchange.method,
            exchange.url(access.base_url),
            data=exchange.body,
            headers=headers,
            timeout=timeout,
            ssl=access.ssl if access.ssl is not None else True,
            proxy=access.proxy,
            server_hostname=access.server_hostname,
            allow_redirects=False,
        )
        self.clock.learn(response.headers.get("Date"), sent_at=sent_at)
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
    """Ask the operating system to notice a vanished peer."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS:
        option = getattr(socket, name, None)
        if option is not None and sys.platform != "win32":
            made.setsockopt(socket.IPPROTO_TCP, option, value)


class _mapped_errors:  # noqa: N801 - reads as a statement
    """Turns what aiohttp raises into our tree."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is None:
            return
        if isinstance(exc, LineTooLongError):
            raise UnexpectedReply(200, request=str(self._exchange), message=str(exc)) from exc
        if isinstance(exc, aiohttp.ClientError | asyncio.TimeoutError | OSError):
            raise _transport_error(str(self._exchange), exc) from exc


async def _refusal(exchange: Exchange, response: aiohttp.ClientResponse) -> ApiError:
    return error_from_reply(
        response.status,
        await response.content.read(_READ_BUFFER_BYTES),
        request=str(exchange),
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
_TLS = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, aiohttp.ServerFingerprintMismatch)


def _transport_error(request: str, exc: BaseException) -> TransportError:
    evidence = f"{type(exc).__name__}: {exc}".rstrip(": ")
    if isinstance(exc, _TLS):
        return TlsFailed(request, evidence)
    if isinstance(exc, _NEVER_SENT):
        return Unreachable(request, evidence)
    return ReplyLost(request, evidence)


def _suffix(query: Query) -> str:
    given = {k: _query_value(v) for k, v in query.items() if v is not None}
    return f"?{urlencode(given)}" if given else ""


def _query_value(value: str | float | bool) -> str:
    # The API server reads booleans as Go does; Python's "True" works there, but not on everything that imitates it.
    return str(value).lower() if isinstance(value, bool) else str(value)
