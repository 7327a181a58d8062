"""The connections to one API server: which of them serves a request, and what travels over them.

h11 parses and writes HTTP. A process of a task, which sends some requests and ends, pays most for the import of a
client: that of anyio, at the first request of httpx, takes more CPU than all requests of a task, and that of aiohttp
takes twice as much. h11 is loaded in each process of Airflow, because httpx uses it, too.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

import h11
from msgspec import Struct

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.cluster.errors import TlsFailed, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable

    from airflow_provider_gangjobs.cluster.auth.credentials import Access

IDLE_MAX_S: Final = 15.0
"""Load balancers close connections that are idle for longer, possibly at the moment of the next request."""
SECOND_ADDRESS_AFTER_S: Final = 0.25
"""How long a connection to the first address of a host may take before the second one is tried, too (RFC 8305)."""
CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 1.0
READ_BUFFER_BYTES: Final = 2**18
HEAD_BYTES_MAX: Final = 2**17
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
BROKEN: Final = (h11.ProtocolError, zlib.error, EOFError, OSError)
"""The exceptions of an exchange whose request may have reached the server."""

JSON: Final = "application/json"
USER_AGENT: Final = f"airflow-provider-gangjobs/{__version__}"
"""The API server records the part before the slash as the field manager of written objects."""

Query = Mapping[str, str | int | float | bool | None]
Headers = list[tuple[str, str]]
"""A name may occur several times."""


class Request(Struct, frozen=True):
    """One HTTP request. `str(request)` is safe to log."""

    method: str
    path: str
    query: Query | None = None
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def target(self) -> str:
        """The path with its query, encoded for a URL."""
        present = {k: _query_value(v) for k, v in (self.query or {}).items() if v is not None}
        return f"{self.path}?{urlencode(present)}" if present else self.path

    def headers(self, access: Access) -> Headers:
        """Return the headers, which contain the credentials of `access`."""
        content = [] if self.body is None else [("Content-Type", self.content_type)]
        return [("Accept", self.accept), ("User-Agent", USER_AGENT), *content, *access.headers]


def _query_value(value: str | float | bool) -> str:
    # The API server parses booleans as Go does and accepts "True", but other servers of the same API may not.
    return str(value).lower() if isinstance(value, bool) else str(value)


Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def describe_exception(exc: BaseException) -> str:
    """Return the class and the text of an exception, as the evidence of an error."""
    return f"{type(exc).__name__}: {exc}".rstrip(": ")


class Connections:
    """Connections to one API server. Requests share some of them; each stream has one of its own.

    :param requests_max: How many requests are in flight at most.
    :param tcp_keepalive: Whether the kernel asks idle peers whether they are there.
    """

    def __init__(self, *, requests_max: int, tcp_keepalive: bool) -> None:
        self._tcp_keepalive = tcp_keepalive
        self._free = asyncio.Semaphore(requests_max)
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []
        """Those of `_open` that serve no request, the longest idle ones first."""

    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are closed, so that the loop may end. Safe to repeat."""
        self._idle.clear()
        connections, self._open = self._open, set()
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.wait_closed()

    async def send(self, request: Request, access: Access, timeout_s: float | None) -> Response:
        """Send a request with the credentials of `access` and return the response with any status, its body unread.

        :param timeout_s: The limit of the whole exchange, including the body. `None` for a stream.

        Raises:
            Unreachable, TlsFailed: the request was not sent.
            *BROKEN: the request may have been sent.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        sent = _encoded(request, access)
        async with asyncio.timeout_at(deadline), AsyncExitStack() as on_failure:
            if timeout_s is not None:
                await on_failure.enter_async_context(self._free)
            connection = await self._connection(request, access)
            on_failure.push_async_callback(self._release, connection)
            head = await connection.send(sent, request.body)
            return Response(connection, head, deadline, on_failure.pop_all())

    async def _connection(self, request: Request, access: Access) -> _Connection:
        """Return a connection that no other request uses."""
        route = access.base_url, access.ssl, access.server_hostname, access.proxy
        while self._idle:
            connection = self._idle.pop()
            async with AsyncExitStack() as otherwise:
                otherwise.push_async_callback(self._close, connection)
                if connection.route == route and await connection.is_usable():
                    otherwise.pop_all()
                    return connection
        try:
            streams = await _connect(access, tcp_keepalive=self._tcp_keepalive)
        except (OSError, ValueError, h11.ProtocolError) as exc:
            error = TlsFailed if isinstance(exc, ssl.SSLError) else Unreachable
            where = urlsplit(access.base_url).netloc
            if access.proxy is not None:
                where = f"{where} through the proxy {access.proxy.url}"
            raise error(str(request), f"{where}: {describe_exception(exc)}") from exc
        connection = _Connection(streams, route)
        self._open.add(connection)
        return connection

    async def _release(self, connection: _Connection) -> None:
        """Keep the connection for another request if its response was read to the end, and close it otherwise."""
        if connection in self._open and connection.next_exchange():
            self._idle.append(connection)
        else:
            await self._close(connection)
        while self._idle and self._idle[0].has_expired:
            await self._close(self._idle.pop(0))

    async def _close(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.abort()
        await connection.wait_closed()


class _Connection:
    """A connection to the API server, or to a proxy in front of it. It serves one exchange at a time."""

    def __init__(self, streams: Streams, route: Hashable) -> None:
        self.route = route
        self._reader, self._writer = streams
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._idle_at = 0.0

    async def send(self, request: h11.Request, body: bytes | None) -> h11.Response:
        """Send a request, and return the head of its response."""
        await _write(self._writer, self._http, request, *([] if body is None else [h11.Data(body)]))
        return await _read_head(self._reader, self._http)

    async def read(self) -> h11.Data | h11.EndOfMessage:
        """Return the next part of the body, or its end."""
        event: h11.Data | h11.EndOfMessage = await _read_event(self._reader, self._http)
        return event

    def next_exchange(self) -> bool:
        """Prepare for another exchange. Return false if the last one was not read to its end, or more has followed it.

        What follows would be taken for the response to the next request, as a broken proxy could make it.
        """
        if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE} or any(self._http.trailing_data):
            return False
        self._http.start_next_cycle()
        self._idle_at = asyncio.get_running_loop().time()
        return True

    async def is_usable(self) -> bool:
        """Return whether the idle connection is open, and nothing has arrived on it."""
        for _ in range(2):  # the loop looks at its sockets, and then handles what has arrived
            await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await self._reader.read(1)
            return False
        return not self._reader.at_eof() and not self.has_expired

    @property
    def has_expired(self) -> bool:
        """Whether the idle connection is too old to be used."""
        return asyncio.get_running_loop().time() - self._idle_at > IDLE_MAX_S

    def abort(self) -> None:
        """Close the connection at once: an orderly close of TLS would wait for the peer. Safe to repeat."""
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        with suppress(OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()


async def _connect(access: Access, *, tcp_keepalive: bool) -> Streams:
    """Open a connection over which the API server is reached: directly, through a tunnel, or by an HTTP proxy.

    Raises:
        OSError: there is no connection, or the TLS handshake failed (`ssl.SSLError`).
        ValueError: the host is no name.
        h11.ProtocolError: the proxy does not speak HTTP.
    """
    server, via = urlsplit(access.base_url), access.proxy
    host, port = server.hostname or "", server.port or (443 if access.ssl else 80)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S), AsyncExitStack() as on_failure:
            if via is None:
                reader, writer = await _open(host, port, access.ssl, access.server_hostname)
            else:
                proxy, is_tls = urlsplit(via.url), via.url.startswith("https")
                # As in Go's client, the context of the API server also verifies a proxy with TLS.
                context = (access.ssl or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) if is_tls else None
                reader, writer = await _open(proxy.hostname or "", proxy.port or (443 if is_tls else 80), context)
            on_failure.callback(writer.transport.abort)
            if tcp_keepalive:
                with writer.get_extra_info("socket").dup() as duplicate:  # that of uvloop has no `setsockopt`
                    for option in KEEPALIVE_OPTIONS:
                        duplicate.setsockopt(*option)
            if via is not None and access.ssl is not None:
                await _open_tunnel(reader, writer, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", via.headers)
                await writer.start_tls(access.ssl, server_hostname=access.server_hostname or host)
            on_failure.pop_all()
            return reader, writer
    except TimeoutError:
        raise TimeoutError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None


async def _open(host: str, port: int, context: ssl.SSLContext | None, name: str | None = None) -> Streams:
    options: dict[str, Any] = {"ssl": context, "server_hostname": name or host} if context else {}
    # uvloop, on which Airflow's API server runs, tries the addresses of a host one after the other.
    if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        options["happy_eyeballs_delay"] = SECOND_ADDRESS_AFTER_S
    return await asyncio.open_connection(host, port, limit=READ_BUFFER_BYTES, **options)


async def _open_tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, headers: Any) -> None:
    http = h11.Connection(h11.CLIENT)
    await _write(writer, http, h11.Request(method="CONNECT", target=target, headers=[("Host", target), *headers]))
    head = await _read_head(reader, http)
    if not 200 <= head.status_code < 300:
        raise ConnectionRefusedError(f"the proxy has answered {head.status_code} {head.reason.decode('latin-1')}")


async def _write(writer: asyncio.StreamWriter, http: h11.Connection, *events: h11.Request | h11.Data) -> None:
    for event in (*events, h11.EndOfMessage()):
        writer.write(http.send(event) or b"")
    with suppress(ConnectionError):  # the server may have answered before it closed the connection
        await writer.drain()


async def _read_head(reader: asyncio.StreamReader, http: h11.Connection) -> h11.Response:
    while isinstance(head := await _read_event(reader, http), h11.InformationalResponse):
        pass
    if not isinstance(head, h11.Response):
        raise h11.RemoteProtocolError("there is no response")
    return head


async def _read_event(reader: asyncio.StreamReader, http: h11.Connection) -> Any:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(READ_BUFFER_BYTES))
    return event


def _encoded(request: Request, access: Access) -> h11.Request:
    """Return the request for h11.

    Raises:
        Unreachable: HTTP does not allow it, so it was not sent. The error does not quote the header, which may be a
            credential.
    """
    server = urlsplit(access.base_url)
    headers: Headers = [("Host", server.netloc), ("Accept-Encoding", "gzip"), *request.headers(access)]
    if request.body is not None:
        headers.append(("Content-Length", str(len(request.body))))
    begin = server.path
    if access.proxy is not None and access.ssl is None:  # the proxy forwards each request
        begin = f"{server.scheme}://{server.netloc}{begin}"
        headers += access.proxy.headers
    try:
        target = f"{begin}{request.target}"
        return h11.Request(method=request.method, target=target, headers=headers)
    except (UnicodeEncodeError, h11.LocalProtocolError):
        why = "HTTP does not allow the path or a header of this request"
        raise Unreachable(str(request), why) from None


class Response:
    """A response whose head has arrived."""

    def __init__(
        self, connection: _Connection, head: h11.Response, deadline: float | None, on_close: AsyncExitStack
    ) -> None:
        self._connection = connection
        self._headers = dict(head.headers)
        self._deadline = deadline
        self._on_close = on_close
        self.status = head.status_code

    def header(self, name: str) -> str | None:
        """Return the value of a header."""
        value = self._headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the decoded body. Fails when the request has taken longer than its `timeout_s`."""
        return self._limited(partial(asyncio.timeout_at, self._deadline))

    async def stream(self, idle_timeout_s: float) -> AsyncIterator[bytes]:
        """Yield the decoded body as it arrives.

        Raises:
            TimeoutError: nothing arrived for `idle_timeout_s`.
        """
        try:
            async with aclosing(self._limited(partial(asyncio.timeout, idle_timeout_s))) as parts:
                async for part in parts:
                    yield part
        except TimeoutError:
            raise TimeoutError(f"nothing arrived for {idle_timeout_s:g} s") from None

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end, and close the connection otherwise."""
        await self._on_close.aclose()

    async def _limited(self, limit: Callable[[], asyncio.Timeout]) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body, with a new time limit for each part."""
        gzip = _Gzip() if self.header("Content-Encoding") == "gzip" else None
        while True:
            async with limit():
                event = await self._connection.read()
            if not isinstance(event, h11.Data):
                break
            part = bytes(event.data) if gzip is None else gzip.decompress(bytes(event.data))
            if part:
                yield part
        if gzip is not None and not gzip.is_at_end:
            raise EOFError("the compressed body is cut off")


class _Gzip:
    """Decompresses a body of gzip members (RFC 1952): an API server of Kubernetes 1.37 begins one for each event."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def is_at_end(self) -> bool:
        """Whether what was decompressed ends with a member."""
        return self._member.eof

    def decompress(self, data: bytes) -> bytes:
        """Return as much of the text as is known from what has arrived.

        Raises:
            zlib.error: this is no gzip.
        """
        parts = []
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            parts.append(self._member.decompress(data))
            data = self._member.unused_data
        return b"".join(parts)
