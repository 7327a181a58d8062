"""Express: many small writes over a few connections, for a fifth of what an HTTP client library costs for each.

A connection sends its next request in the callback that has read the answer to the one before: no task, future or
header object for each. It knows only how to succeed. What is not answered as hoped is given back, to be sent in the
ordinary way, which knows of retries, credentials, proxies and errors. So it is for writes that may be applied twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from urllib.parse import urlsplit

import httptools

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Container, Iterator

    from airflow_provider_gangjobs.cluster.auth.credentials import Access

T = TypeVar("T")

CLIENT_ERRORS: Final = range(400, 500)
OF_THE_SERVER: Final = frozenset({401, 403, 408, 429})
"""Refusals that say nothing of the one request: each other would be refused, too."""


@dataclass(frozen=True)
class Line:
    """Where the connections lead, and what all requests have in common."""

    host: str
    port: int
    prefix: bytes
    """Of each path, behind a proxy that serves several clusters."""
    headers: bytes = field(repr=False)
    """With the credentials."""
    ssl: ssl.SSLContext | None = field(repr=False)
    server_hostname: str | None

    @classmethod
    def to(cls, access: Access, headers: dict[str, str]) -> Line | None:
        """The line that `access` describes; `None` if it takes more than a plain connection."""
        url = urlsplit(access.base_url)
        if access.proxy or url.hostname is None or (url.scheme == "https") != (access.ssl is not None):
            return None
        given = {"Host": url.netloc, **headers}
        if access.authorization:
            given["Authorization"] = access.authorization
        try:
            head = "".join(f"{name}: {_header(value)}\r\n" for name, value in given.items()).encode("latin-1")
        except ValueError:
            return None
        port = url.port or (443 if access.ssl else 80)
        hostname = (access.server_hostname or url.hostname) if access.ssl else None
        return cls(url.hostname, port, url.path.rstrip("/").encode(), head, access.ssl, hostname)


def _header(value: str) -> str:
    """
    Raises:
        ValueError: it would end the header, and begin another.
    """
    if any(character in value for character in "\r\n\0"):
        raise ValueError("a header has one line")
    return value


@dataclass
class Express(Generic[T]):
    """One run: takes from `requests` until there are no more, or the server has had enough.

    :param requests: What each is for, its path, and its body. Taken one by one, as connections become free.
    :param done: Told of each that was answered as hoped.
    :param hoped: The statuses that mean that nothing is left to do.
    """

    line: Line
    method: str
    requests: Iterator[tuple[T, str, bytes]]
    done: Callable[[T], None]
    hoped: Container[int]
    timeout_s: float
    sent: int = 0
    succeeded: int = 0
    given_back: list[T] = field(default_factory=list)
    """Those that must be sent in another way. They may have been applied."""
    _stopped: bool = False

    async def run(self, connections: int) -> None:
        """Send all, over so many connections. Never raises, but for cancellation."""
        async with asyncio.TaskGroup() as group:
            for number in range(connections):
                group.create_task(self._drive(_Lane(self)), name=f"express-{number}")

    async def _drive(self, lane: _Lane[T]) -> None:
        loop, line = asyncio.get_running_loop(), self.line
        try:
            async with asyncio.timeout(self.timeout_s):
                await loop.create_connection(
                    lambda: lane, line.host, line.port, ssl=line.ssl, server_hostname=line.server_hostname
                )
            await lane.silent_for(self.timeout_s)
        except (OSError, TimeoutError):
            pass
        finally:
            lane.abort()

    def take(self) -> tuple[T, bytes] | None:
        """The next request, as it goes over the wire."""
        if self._stopped:
            return None
        found = next(self.requests, None)
        if found is None:
            return None
        what, path, body = found
        self.sent += 1
        line = self.line
        return what, b"%s %s%s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (
            self.method.encode(),
            line.prefix,
            path.encode("ascii"),
            line.headers,
            len(body),
            body,
        )

    def answered(self, what: T, status: int) -> None:
        if status in self.hoped:
            self.succeeded += 1
            self.done(what)
            return
        self.give_back(what)
        if status not in CLIENT_ERRORS or status in OF_THE_SERVER:
            self._stopped = True

    def give_back(self, what: T) -> None:
        self.given_back.append(what)


class _Lane(asyncio.Protocol, Generic[T]):
    """One connection, with one request on it at a time."""

    def __init__(self, run: Express[T]) -> None:
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._on_the_way: list[T] = []
        """None or one."""
        self._ended = asyncio.Event()
        self._answers = 0

    async def silent_for(self, time_s: float) -> None:
        """Wait for the end, at the latest when there was no answer for so long, or twice that."""
        answers = -1
        while answers != self._answers and not self._ended.is_set():
            answers = self._answers
            with suppress(TimeoutError):
                async with asyncio.timeout(time_s):
                    await self._ended.wait()

    def abort(self) -> None:
        """Let go of the connection; safe to repeat. A request that has no answer yet is given back."""
        if self._transport is not None:
            self._transport.abort()
        while self._on_the_way:
            self._run.give_back(self._on_the_way.pop())
        self._ended.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send_next()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
        if not self._on_the_way and not self._ended.is_set():
            self._send_next()

    def on_message_begin(self) -> None:
        """Called by the parser: an answer begins. One that nobody asked for would be taken for the next one's."""
        if not self._on_the_way:
            self.abort()

    def on_message_complete(self) -> None:
        """Called by the parser: an answer has been read to its end."""
        if not self._on_the_way:
            return
        self._answers += 1
        self._run.answered(self._on_the_way[0], self._parser.get_status_code())
        self._on_the_way.clear()
        if not self._parser.should_keep_alive():
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort()

    def _send_next(self) -> None:
        taken = self._run.take()
        if taken is None or self._transport is None:
            self.abort()
            return
        what, request = taken
        self._on_the_way.append(what)
        self._transport.write(request)
