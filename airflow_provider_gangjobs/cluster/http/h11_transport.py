"""A transport over h11 and asyncio, for a process that sends some requests and ends.

In the process of a task, Airflow has loaded h11 and asyncio already. Loading aiohttp would take more CPU than all
requests of a submission. httpx and httpcore are loaded too, but their first asynchronous request loads anyio's
backend, which takes 40 ms of CPU, and they leave credentials, time limits and the meaning of errors to the caller.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from typing import TYPE_CHECKING, Final

import h11

from airflow_provider_gangjobs.cluster.errors import ReplyLost, TlsFailed, TransportError, Unreachable
from airflow_provider_gangjobs.cluster.http.h11_connection import H11Connection, InvalidRequestError
from airflow_provider_gangjobs.cluster.http.transport import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    READ_BUFFER_BYTES,
    Transport,
    describe_exception,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials
    from airflow_provider_gangjobs.cluster.http.request import Proxy, Request, ServerAddress

REQUEST_CONNECTIONS_MAX: Final = 4
"""Limits the requests in flight. Only logs are read concurrently, and each further connection costs a handshake."""
IDLE_MAX_S: Final = 15.0
"""Load balancers close connections that are idle for longer, possibly at the moment of the next request."""
_GZIP: Final = 16 + zlib.MAX_WBITS

_Route = tuple["ServerAddress", "Proxy | None"]
"""Connections of the same server and proxy are interchangeable."""


class H11Transport(Transport):
    """Some connections to one API server. Requests share them; each stream has one of its own."""

    def __init__(self, credentials: Credentials, *, tcp_keepalive: bool, monotonic: Callable[[], float]) -> None:
        super().__init__(credentials, tcp_keepalive=tcp_keepalive, monotonic=monotonic)
        self._free = asyncio.Semaphore(REQUEST_CONNECTIONS_MAX)
        self._idle: list[tuple[_Route, H11Connection]] = []
        self._open: set[H11Connection] = set()

    async def aclose(self) -> None:
        self._idle.clear()
        for end in (H11Connection.close, H11Connection.abort):
            connections = list(self._open)
            for connection in connections:
                end(connection)
            if connections:
                await asyncio.wait([connection.closed for connection in connections], timeout=CLOSE_TIMEOUT_S)

    async def _send_once(self, request: Request, access: Access, timeout_s: float | None) -> _Response:
        """Send the request over a connection that is free, or over a new one."""
        if timeout_s is None:
            return await self._send(request, access, None, on_end=lambda: None)
        deadline = asyncio.get_running_loop().time() + timeout_s
        async with asyncio.timeout_at(deadline):
            await self._free.acquire()
            try:
                return await self._send(request, access, deadline, on_end=self._free.release)
            except BaseException:
                self._free.release()
                raise

    async def _send(
        self, request: Request, access: Access, deadline: float | None, on_end: Callable[[], None]
    ) -> _Response:
        route = address, proxy = self._route(access, request)
        connection = self._take_idle(route) or await self._connect(request, address, proxy)
        headers = [("Host", address.host_header), ("Accept-Encoding", "gzip"), *request.headers(access)]
        target = f"{address.path_prefix}{request.target}"
        if proxy and address.tls is None:
            target, headers = f"http://{address.host_header}{target}", [*headers, *proxy.headers()]
        try:
            head = await connection.send(request.method, target, headers, request.body)
        except BaseException:
            connection.abort()
            raise

        def end() -> None:
            on_end()
            if connection.idle_since is not None:
                self._idle.append((route, connection))

        return _Response(connection, head, deadline, end)

    def _take_idle(self, route: _Route) -> H11Connection | None:
        """Return a connection on which the server waits for the next request, if there is one."""
        oldest = asyncio.get_running_loop().time() - IDLE_MAX_S
        while self._idle:
            known_route, connection = self._idle.pop()
            is_fresh = connection.idle_since is not None and connection.idle_since >= oldest
            if known_route == route and is_fresh and not connection.is_closing:
                return connection
            connection.close()
        return None

    async def _connect(self, request: Request, address: ServerAddress, proxy: Proxy | None) -> H11Connection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await H11Connection.open(address, proxy, tcp_keepalive=self._tcp_keepalive)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as exc:
            error = TlsFailed if isinstance(exc, ssl.SSLError) else Unreachable
            where = f"{address.host}:{address.port}"
            raise error(str(request), f"{where}: {describe_exception(exc)}") from exc
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def _classify(self, exc: BaseException) -> type[TransportError] | None:
        if isinstance(exc, InvalidRequestError):
            return Unreachable
        return ReplyLost if isinstance(exc, h11.RemoteProtocolError | zlib.error | TimeoutError | OSError) else None


class _Response:
    def __init__(
        self, connection: H11Connection, head: h11.Response, deadline: float | None, on_end: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._headers = dict(head.headers)
        self._deadline = deadline
        self._on_end: Callable[[], None] | None = on_end
        self._inflate = zlib.decompressobj(_GZIP) if self.header("Content-Encoding") == "gzip" else None
        self.status = head.status_code

    def header(self, name: str) -> str | None:
        value = self._headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    async def chunks(self) -> AsyncIterator[bytes]:
        while (chunk := await self._next_chunk(asyncio.timeout_at(self._deadline))) is not None:
            for part in self._decoded(chunk):
                yield part

    async def stream(self, idle_timeout_s: float) -> AsyncIterator[bytes]:
        while (chunk := await self._next_chunk(asyncio.timeout(idle_timeout_s))) is not None:
            for part in self._decoded(chunk):
                yield part

    async def aclose(self) -> None:
        if self._on_end is None:
            return
        on_end, self._on_end = self._on_end, None
        if self._connection.idle_since is None:
            self._connection.abort()
        on_end()

    async def _next_chunk(self, limit: asyncio.Timeout) -> bytes | None:
        async with limit:
            chunk = await self._connection.next_chunk()
        if chunk is None and self._inflate is not None and not self._inflate.eof:
            raise zlib.error("the compressed body is incomplete")
        return chunk

    def _decoded(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the chunk in parts of limited size, whatever its compression makes of it."""
        if self._inflate is None:
            yield chunk
            return
        while chunk:
            part = self._inflate.decompress(chunk, READ_BUFFER_BYTES)
            if part:
                yield part
            chunk = self._inflate.unconsumed_tail
