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

__all__ = ["Address", "drain_accepted", "serving"]

BACKLOG = 1024
GRACE_S = 1
"""The time for which a stopping server waits for open requests. Watches end before."""
ACCEPT_ITERATIONS = 4
"""How many iterations of the event loop an accepted connection takes until its protocol has it: one for the task of the
transport, one for the protocol, and two more as a reserve."""


@dataclass(frozen=True)
class Address:
    """The address on which the server listens."""

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
    """Serve the application within the context. Port 0 selects a free port. With a certificate, the server uses HTTPS.

    Raises:
        OSError: the port is in use.
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
        await drain_accepted([listener])
        server.stopping.set()
        await task
        for connection in list(server.server_state.connections):
            # A TLS client that does not answer the close_notify would delay the shutdown for half a minute.
            connection.transport.abort()
        listener.close()


async def drain_accepted(listeners: Iterable[socket.socket]) -> None:
    """Stop accepting connections, and wait until accepted connections have reached their protocol.

    asyncio needs some loop iterations for that. If the server is closed in between, asyncio drops the connection
    without closing it, and the client waits.
    """
    for listener in listeners:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(ACCEPT_ITERATIONS):
        await asyncio.sleep(0)


async def _until_started(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    while not server.started:
        if task.done():
            await task
            raise RuntimeError("the API server stopped before it had started")
        await asyncio.sleep(0.001)


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner and stops without delay.

    uvicorn's own shutdown waits for its ticks, in total a fifth of a second, which is most of the time of a short test.
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
        """Accept no more connections, wait a limited time for open requests, then break the remaining connections."""
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
    """Gives the application a function that breaks the connection, which fault injection uses."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio sets TCP_NODELAY only for sockets with an explicit protocol number, and accepted sockets have none.
        # Without it, each response of two parts waits 40 ms for the client's delayed acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app = _with_abort(self.app, transport)


def _with_abort(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[ABORT] = transport.abort
        await app(scope, receive, send)

    return wrapped
