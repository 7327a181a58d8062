"""Serves the application on a port of the loopback interface, on the event loop of the caller."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gangjobs_sandbox.api.faults import ABORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gangjobs_sandbox.tls import Certificate

__all__ = ["Address", "hand_on_accepted", "serving"]

BACKLOG = 1024
GRACE_S = 1
"""How long requests in flight may take to end when the server stops; watches are ended before."""
HANDING_ON_TURNS = 4
"""One for the task that makes the transport, one for its protocol, and as many again to be sure."""


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


@asynccontextmanager
async def serving(
    app: Starlette, *, host: str = "127.0.0.1", port: int = 0, certificate: Certificate | None = None
) -> AsyncIterator[Address]:
    """Serve the application while the block runs; port 0 takes a free one. With a certificate it is HTTPS.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.create_server((host, port), backlog=BACKLOG)
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,
        server_header=False,
        timeout_keep_alive=75,
    )
    config.load()
    if certificate is not None:
        config.ssl = certificate.server_context()
    server = _EmbeddedServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="api-server")
    try:
        await _until_started(server, task)
        yield Address(host, listener.getsockname()[1], "https" if certificate else "http")
    finally:
        app.state.hub.close()
        await hand_on_accepted([listener])
        server.stopping.set()
        await task
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # a TLS peer that does not answer the farewell would keep it for half a minute
        listener.close()


async def hand_on_accepted(listeners: Iterable[socket.socket]) -> None:
    """Accept no more, and let the connections that were accepted reach their protocol.

    asyncio needs some turns from the one to the other. A server that is closed between them forgets the connection
    without closing it, and whoever is on the other end waits.
    """
    for listener in listeners:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(HANDING_ON_TURNS):
        await asyncio.sleep(0)


async def _until_started(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    while not server.started:
        if task.done():
            await task
            raise RuntimeError("the API server stopped before it had started")
        await asyncio.sleep(0.001)


class _EmbeddedServer(uvicorn.Server):
    """A server that leaves the process's signals to its owner, and stops as soon as it is asked to.

    uvicorn's own waits for its ticks, a fifth of a second together, which is most of the time of a short test.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, let requests in flight end for a moment, and break what is left."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := set(self.server_state.tasks):
            _, late = await asyncio.wait(tasks, timeout=GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for server in self.servers:
            await server.wait_closed()


class _Protocol(H11Protocol):
    """Tells the application how to break the connection, which faults do."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does it only for sockets made with an explicit protocol number, which those of a listener are not;
        # without it each answer of two parts waits 40 ms for the client's delayed acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app = _with_abort(self.app, transport)


def _with_abort(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[ABORT] = transport.abort
        await app(scope, receive, send)

    return wrapped
