"""Sends many small writes over a few connections, at a fifth of the CPU that an HTTP client library needs for each.

A connection sends its next request in the callback that has read the response to the previous one. No task, future,
or header object exists per request. Only success is handled here. Every request with another result is returned as
unfinished, and the caller sends it with the ordinary client, which handles retries, credentials, proxies, and errors.
An unfinished request may have been applied, so only writes that may be applied twice can be sent this way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import httptools

from airflow_provider_gangjobs.cluster.http.request import Request, ServerAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials

T = TypeVar("T")

CLIENT_ERRORS: Final = range(400, 500)
STOP_STATUSES: Final = frozenset({401, 403, 408, 429})
"""Client errors that concern the whole batch and not one request: the server would refuse the other requests too."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a server and the request parts that all requests share."""

    address: ServerAddress
    headers: bytes = field(repr=False)
    """Encoded header lines, including the credentials."""

    @classmethod
    def from_access(cls, access: Access, request: Request) -> Endpoint | None:
        """Return the endpoint of `access`, or `None` if a plain connection cannot reach it (for example, a proxy).

        :param request: A request with the content types of all requests.
        """
        if access.proxy or access.base_url.startswith("https:") != (access.ssl is not None):
            return None
        try:
            address = ServerAddress.of(access)
            headers = [("Host", address.host_header), *request.headers(access)]
            head = "".join(f"{name}: {_header_value(value)}\r\n" for name, value in headers)
            return cls(address, head.encode("latin-1"))
        except ValueError:
            return None


def _header_value(value: str) -> str:
    """Return `value`.

    Raises:
        ValueError: `value` contains a line end, so that it could inject another header.
    """
    if any(character in value for character in "\r\n\0"):
        raise ValueError("a header has one line")
    return value


async def bulk_patch(
    credentials: Credentials,
    requests: Iterator[tuple[T, str, bytes]],
    on_success: Callable[[T], None],
    *,
    content_type: str,
    accept: str,
    success_statuses: Container[int],
    connections: int,
    timeout_s: float,
) -> BulkPatch[T] | None:
    """Send many small patches and return their results, or `None` if a plain connection cannot reach the server.

    See `BulkPatch` for the other parameters.
    """
    access = credentials.cached or await credentials.current()
    endpoint = Endpoint.from_access(access, Request("PATCH", "", None, b"", content_type, accept))
    if endpoint is None:
        return None
    batch = BulkPatch(endpoint, "PATCH", requests, on_success, success_statuses, timeout_s)
    await batch.run(connections)
    return batch


@dataclass
class BulkPatch(Generic[T]):
    """One batch of writes. The batch ends when `requests` is exhausted or the server refuses further requests.

    :param requests: Tuples of item, path, and body. A connection takes the next one when it is free.
    :param on_success: Called with the item of each request that was answered with one of `success_statuses`.
    :param success_statuses: The statuses after which nothing is left to do for an item.
    :param timeout_s: How long to wait for a connection, and for each response.
    """

    endpoint: Endpoint
    method: str
    requests: Iterator[tuple[T, str, bytes]]
    on_success: Callable[[T], None]
    success_statuses: Container[int]
    timeout_s: float
    sent: int = 0
    succeeded: int = 0
    unfinished: list[T] = field(default_factory=list)
    """Items of requests that were sent without success. The server may have applied them."""
    _is_stopped: bool = False

    async def run(self, connections: int) -> None:
        """Send all requests over `connections` connections. Raises nothing except cancellation."""
        async with asyncio.TaskGroup() as group:
            for number in range(connections):
                group.create_task(self._run_connection(_Connection(self)), name=f"bulk-patch-{number}")

    async def _run_connection(self, connection: _Connection[T]) -> None:
        loop, address = asyncio.get_running_loop(), self.endpoint.address
        try:
            async with asyncio.timeout(self.timeout_s):
                await loop.create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=address.tls,
                    server_hostname=address.server_hostname,
                )
            await connection.wait_closed(idle_timeout_s=self.timeout_s)
        except (OSError, TimeoutError):
            pass
        finally:
            connection.abort()

    def next_request(self) -> tuple[T, bytes] | None:
        """Return the next item and its encoded request, or `None` if there is nothing left to send."""
        if self._is_stopped:
            return None
        following = next(self.requests, None)
        if following is None:
            return None
        item, path, body = following
        self.sent += 1
        return item, b"%s %s%s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (
            self.method.encode(),
            self.endpoint.address.path_prefix.encode("ascii"),
            path.encode("ascii"),
            self.endpoint.headers,
            len(body),
            body,
        )

    def handle_response(self, item: T, status: int) -> None:
        """Count a patch that was applied. An error of the server, or one of `STOP_STATUSES`, stops further patches."""
        if status in self.success_statuses:
            self.succeeded += 1
            self.on_success(item)
            return
        self.add_unfinished(item)
        if status not in CLIENT_ERRORS or status in STOP_STATUSES:
            self._is_stopped = True

    def add_unfinished(self, item: T) -> None:
        """Note an item whose patch was not applied, or may not have been."""
        self.unfinished.append(item)


class _Connection(asyncio.Protocol, Generic[T]):
    """One connection, with at most one request in flight."""

    def __init__(self, batch: BulkPatch[T]) -> None:
        self._batch = batch
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._in_flight: list[T] = []
        """Empty, or the item of the one request that has no response yet."""
        self._closed = asyncio.Event()
        self._responses = 0

    async def wait_closed(self, *, idle_timeout_s: float) -> None:
        """Wait until the connection is closed, or no response has come for one to two times `idle_timeout_s`."""
        responses = -1
        while responses != self._responses and not self._closed.is_set():
            responses = self._responses
            with suppress(TimeoutError):
                async with asyncio.timeout(idle_timeout_s):
                    await self._closed.wait()

    def abort(self) -> None:
        """Close the connection. A request that has no response becomes unfinished. Safe to repeat."""
        if self._transport is not None:
            self._transport.abort()
        while self._in_flight:
            self._batch.add_unfinished(self._in_flight.pop())
        self._closed.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send_next()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
        if not self._in_flight and not self._closed.is_set():
            self._send_next()

    def on_message_begin(self) -> None:
        """Close the connection if an unrequested response begins: it would be taken for the next request's response.

        The parser calls this method at the start of a response.
        """
        if not self._in_flight:
            self.abort()

    def on_message_complete(self) -> None:
        """Handle a complete response. The parser calls this method at the end of a response."""
        if not self._in_flight:
            return
        self._responses += 1
        self._batch.handle_response(self._in_flight[0], self._parser.get_status_code())
        self._in_flight.clear()
        if not self._parser.should_keep_alive():
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort()

    def _send_next(self) -> None:
        following = self._batch.next_request()
        if following is None or self._transport is None:
            self.abort()
            return
        item, request = following
        self._in_flight.append(item)
        self._transport.write(request)
