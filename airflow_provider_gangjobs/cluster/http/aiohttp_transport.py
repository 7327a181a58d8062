"""A transport over aiohttp, for watches of many objects: aiohttp needs half of the CPU of httpx for each event."""

from __future__ import annotations

import asyncio
import socket
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import aiohttp
import yarl

from airflow_provider_gangjobs.cluster.errors import ReplyLost, TlsFailed, TransportError, Unreachable
from airflow_provider_gangjobs.cluster.http.transport import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    KEEPALIVE_OPTIONS,
    READ_BUFFER_BYTES,
    Transport,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials
    from airflow_provider_gangjobs.cluster.http.transport import Request

REQUEST_CONNECTIONS_MAX = 100
"""Limits the requests in flight to one cluster."""
STREAM_CONNECTIONS = 0
"""No limit: streams have their own connections, which informers limit."""


class AiohttpTransport(Transport):
    """Two connection pools to one API server, for requests and for streams. Each opens at its first use."""

    def __init__(self, credentials: Credentials, *, tcp_keepalive: bool, monotonic: Callable[[], float]) -> None:
        super().__init__(credentials, tcp_keepalive=tcp_keepalive, monotonic=monotonic)
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        """By the limit of their connections: one for requests, and one for streams."""
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def aclose(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()
        # A TLS stream that was not read to its end is shut down only after its session has forgotten the stream.
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + CLOSE_TIMEOUT_S
        while any(made.fileno() >= 0 for made in self._sockets) and loop.time() < give_up_at:  # noqa: ASYNC110 - sockets have no close event
            await asyncio.sleep(0.002)

    async def _send_once(self, request: Request, access: Access, timeout_s: float | None) -> _Response:
        proxy = access.proxy
        for_proxy = proxy.headers if proxy else ()
        session = self._session(STREAM_CONNECTIONS if timeout_s is None else REQUEST_CONNECTIONS_MAX)
        response = await session.request(
            request.method,
            yarl.URL(f"{access.base_url}{request.target}", encoded=True),
            data=request.body,
            headers=[*request.headers(access), *(() if access.ssl else for_proxy)],
            timeout=_timeout(timeout_s),
            ssl=access.ssl if access.ssl is not None else True,
            # Errors of aiohttp quote the URL of the proxy, so the URL has no credentials.
            proxy=proxy.url if proxy else None,
            proxy_headers=dict(for_proxy) if access.ssl else None,
            server_hostname=access.server_hostname,
            allow_redirects=False,
        )
        return _Response(response)

    def _classify(self, exc: BaseException) -> type[TransportError] | None:
        if isinstance(exc, _TLS_ERRORS):
            return TlsFailed
        if isinstance(exc, _NEVER_SENT):
            return Unreachable
        return ReplyLost if isinstance(exc, aiohttp.ClientError | asyncio.TimeoutError | OSError) else None

    def _session(self, limit: int) -> aiohttp.ClientSession:
        if limit not in self._sessions:
            self._sessions[limit] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=limit, socket_factory=self._socket),
                read_bufsize=READ_BUFFER_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            # aiohttp sends a GET or DELETE again by itself if its connection breaks, and has no public switch for that.
            self._sessions[limit]._retry_connection = False  # noqa: SLF001
        return self._sessions[limit]

    def _socket(self, address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family=family, type=kind, proto=protocol)
        self._sockets.add(made)
        if self._tcp_keepalive:
            for option in KEEPALIVE_OPTIONS:
                made.setsockopt(*option)
        return made


class _Response:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    def chunks(self) -> AsyncIterator[bytes]:
        return self._response.content.iter_any()

    def stream(self, idle_timeout_s: float) -> AsyncIterator[bytes]:
        return read_chunks(self._response, idle_timeout_s=idle_timeout_s)

    async def aclose(self) -> None:
        self._response.release()
        await self._response.wait_for_close()


async def read_chunks(response: aiohttp.ClientResponse, *, idle_timeout_s: float) -> AsyncIterator[bytes]:
    """Yield each chunk of a body as it arrives.

    Raises:
        TimeoutError: nothing arrived for `idle_timeout_s`.
        aiohttp.ClientError: the connection broke.
    """
    while True:
        try:
            async with asyncio.timeout(idle_timeout_s):
                chunk = await response.content.readany()
        except TimeoutError:
            if response.connection is not None and response.connection.transport is not None:
                # An orderly close of a TLS connection would wait for the peer's close_notify.
                response.connection.transport.abort()
            raise TimeoutError(f"nothing arrived for {idle_timeout_s:g} s") from None
        if not chunk:
            return
        yield chunk


@lru_cache(maxsize=16)
def _timeout(total_s: float | None) -> aiohttp.ClientTimeout:
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
