"""One HTTP/1.1 connection on asyncio, directly or through a proxy. h11 parses, and checks what is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import h11

from airflow_provider_gangjobs.cluster.http.request import USER_AGENT, ServerAddress
from airflow_provider_gangjobs.cluster.http.transport import READ_BUFFER_BYTES, keep_alive

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.http.request import Headers, Proxy

HEAD_BYTES_MAX: Final = 2**16
HAPPY_EYEBALLS_DELAY_S: Final = 0.25
"""The recommended delay of RFC 8305. A host with a broken IPv6 route is reached over IPv4 after this time."""


class ProxyRefusedError(OSError):
    """The proxy did not open a tunnel to the API server."""


class InvalidRequestError(Exception):
    """The request was not sent, because HTTP does not allow its path or one of its headers.

    The message does not quote the header, which may be a credential.
    """


class H11Connection(asyncio.Protocol):
    """A connection with at most one request in flight. Any failure leaves it unusable: the caller aborts it."""

    def __init__(self) -> None:
        self._http = _new_http()
        self._transport: asyncio.Transport | None = None
        self._lost_by: BaseException | None = None
        """Why the connection has ended."""
        self._is_at_eof = False
        self._changed = asyncio.Event()
        self._unparsed_bytes = 0
        self._is_paused = False
        self.idle_since: float | None = None
        """Since when the connection waits for a request, by the clock of the loop. `None` during a request."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, address: ServerAddress, proxy: Proxy | None, *, tcp_keepalive: bool) -> H11Connection:
        """Connect to the server.

        Raises:
            OSError: the server cannot be reached, or the proxy refused. `ssl.SSLError` is an OSError.
        """
        connection, peer = cls(), proxy.address if proxy else address
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                peer.host,
                peer.port,
                ssl=peer.tls,
                server_hostname=peer.server_hostname,
                happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S,
            )
            if tcp_keepalive:
                keep_alive(connection._stream().get_extra_info("socket"))
            if proxy and address.tls:
                await connection._open_tunnel(address, proxy)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def send(self, method: str, target: str, headers: Headers, body: bytes | None) -> h11.Response:
        """Send a request and return the head of the response.

        Raises:
            InvalidRequestError: the request was not sent.
            OSError, h11.RemoteProtocolError: the connection broke.
        """
        self.idle_since = None
        length = [] if body is None else [("Content-Length", str(len(body)))]
        self._stream().write(self._encode(method, target, [*headers, *length], body))
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event

    async def next_chunk(self) -> bytes | None:
        """Return the next part of the body, or `None` at its end. Then the connection is idle, or closed.

        Raises:
            OSError, h11.RemoteProtocolError: the connection broke.
        """
        event = await self._next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        is_reusable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        # Data after the body would be taken for the next request's response.
        if is_reusable and not self._http.trailing_data[0] and not self.is_closing:
            self._http.start_next_cycle()
            self.idle_since = asyncio.get_running_loop().time()
        else:
            self.close()
        return None

    @property
    def is_closing(self) -> bool:
        """True if no further request can be sent."""
        return self._lost_by is not None or self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection in order: a TLS connection waits for the peer's answer. Safe to repeat."""
        if self._transport is None:
            self._finish(ConnectionAbortedError("the connection was never opened"))
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once. Safe to repeat."""
        if self._transport is None:
            self._finish(ConnectionAbortedError("the connection was never opened"))
        else:
            self._transport.abort()

    def _encode(self, method: str, target: str, headers: Headers, body: bytes | None) -> bytes:
        try:
            fields = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
            head = self._http.send(h11.Request(method=method, target=target, headers=fields))
            data = self._http.send(h11.Data(data=body)) if body else b""
            end = self._http.send(h11.EndOfMessage())
        except (UnicodeEncodeError, h11.LocalProtocolError):
            raise InvalidRequestError("HTTP does not allow the path or a header of this request") from None
        return b"".join(filter(None, (head, data, end)))

    async def _open_tunnel(self, address: ServerAddress, proxy: Proxy) -> None:
        host = f"[{address.host}]" if ":" in address.host else address.host
        target = f"{host}:{address.port}"
        headers = [("Host", target), ("User-Agent", USER_AGENT), *proxy.headers()]
        response = await self.send("CONNECT", target, headers, None)
        if response.status_code >= 300:
            reason = response.reason.decode("latin-1")
            raise ProxyRefusedError(f"the proxy refused the connection: {response.status_code} {reason}")
        self._http = _new_http()
        assert address.tls is not None
        self._transport = await asyncio.get_running_loop().start_tls(
            self._stream(), self, address.tls, server_hostname=address.server_hostname
        )
        self.idle_since = asyncio.get_running_loop().time()

    async def _next_event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._unparsed_bytes = 0
            if self._lost_by is not None:
                if self._is_at_eof and self._http.their_state is h11.SEND_BODY:
                    self._is_at_eof = False
                    self._http.receive_data(b"")  # Ends a body that has no length.
                    continue
                raise self._lost_by
            if self._is_paused:
                self._is_paused = False
                self._stream().resume_reading()
            self._changed.clear()
            await self._changed.wait()

    def _stream(self) -> asyncio.Transport:
        if self._transport is None:
            raise ConnectionAbortedError("the connection is closed")
        return self._transport

    # -- called by asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.idle_since = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        if self.idle_since is not None:
            # An unrequested response would be taken for the next request's response.
            self.abort()
            return
        self._http.receive_data(data)
        self._unparsed_bytes += len(data)
        if self._unparsed_bytes > READ_BUFFER_BYTES and not self._is_paused:
            self._is_paused = True
            self._stream().pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        """Note an orderly end of the stream. asyncio closes the connection after this."""
        self._is_at_eof = True
        self._lost_by = self._lost_by or ConnectionResetError("the server closed the connection")
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(exc or ConnectionResetError("the connection was closed"))

    def _finish(self, exc: BaseException) -> None:
        self._lost_by = self._lost_by or exc
        self._changed.set()
        if not self.closed.done():
            self.closed.set_result(None)


def _new_http() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
