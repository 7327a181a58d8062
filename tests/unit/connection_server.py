"""A server that keeps its connections, sends scripted bytes, and counts connections; and a proxy in front of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, cast

if TYPE_CHECKING:
    import ssl

CLOSES = b""
"""In place of a response: the server closes the connection without a response."""


def answer(body: bytes = b"{}", *, status: str = "200 OK", **headers: str) -> bytes:
    """Return a response with a length."""
    fields = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class ConnectionServer:
    """A server that answers the n-th request with the n-th of `answers`, and further requests with the last one.

    :param closes_after: Close the connection after each response without the header `Connection: close`.
    """

    answers: tuple[bytes, ...] = (answer(),)
    tls: ssl.SSLContext | None = None
    closes_after: bool = False
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    closed: int = 0
    """How many connections the clients have closed."""
    go_on: asyncio.Event | None = None
    """Responses wait for this event, if there is one."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def stop_reading(self) -> None:
        """Read nothing more from the open connections, not even their end."""
        for writer in self._writers:
            cast("asyncio.Transport", writer.transport).pause_reading()

    def say(self, data: bytes) -> None:
        """Send bytes that nobody has requested over the open connections."""
        for writer in self._writers:
            writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connections += 1
        try:
            while True:
                await self._answer_one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed += not self.closes_after
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [int(line.split(": ")[1]) for line in head.splitlines() if line.lower().startswith("content-length")]
        await reader.readexactly(sum(lengths))
        due = self.answers[min(len(self.heads), len(self.answers) - 1)]
        self.heads.append(head)
        self.arrived.set()
        if self.go_on is not None:
            await self.go_on.wait()
        writer.write(due)
        if due == CLOSES or self.closes_after:
            raise ConnectionAbortedError


@dataclass
class TunnelProxy:
    """An HTTP proxy that tunnels every CONNECT to one port, or refuses with `status`."""

    target_port: int
    status: str = "200 Connection established"
    tls: ssl.SSLContext | None = None
    heads: list[str] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if not self.status.startswith("200"):
            writer.close()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target_port)
        self._tasks += [asyncio.create_task(_copy(reader, to_server)), asyncio.create_task(_copy(from_server, writer))]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()
