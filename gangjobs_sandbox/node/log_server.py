"""Serves a node's logs as a kubelet does, for a real control plane, which fetches logs from its nodes.

The server answers `GET /containerLogs/<namespace>/<pod>/<container>` over HTTPS on the loopback interface. The embedded
API server does not use this server: it reads from `Node.logs`.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gangjobs_sandbox import tls
from gangjobs_sandbox.api.server import serving
from gangjobs_sandbox.clock import parse_time
from gangjobs_sandbox.node.registration import HOST_IP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from starlette.requests import Request

    from gangjobs_sandbox.api.logs import LogSource
    from gangjobs_sandbox.node.config import NodeConfig

__all__ = ["serving_logs"]


@asynccontextmanager
async def serving_logs(config: NodeConfig, logs: LogSource) -> AsyncIterator[int | None]:
    """Serve logs while the block runs. Yields the port, or None if the configuration has no log port."""
    if config.log_port is None:
        yield None
        return
    own = tls.load_or_issue(config.root_dir / "log-server.pem")
    certificate = _Certificate(own.certificate, own.key, config.log_client_authority)
    async with serving(_app(logs), host=HOST_IP, port=config.log_port, certificate=certificate) as address:
        yield address.port


@dataclass(frozen=True)
class _Certificate(tls.Certificate):
    """The server's certificate. If an authority is given, clients must present a certificate that it has signed."""

    authority: Path | None = None

    def server_context(self) -> ssl.SSLContext:
        context = super().server_context()
        if self.authority is not None:
            context.load_verify_locations(self.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _app(logs: LogSource) -> Starlette:
    closing = asyncio.Event()

    async def answer(request: Request) -> Response:
        try:
            stream = logs.open(**request.path_params, **_options(request.query_params))
            first = await anext(stream, b"")
        except (LookupError, ValueError) as error:
            return PlainTextResponse(str(error), 404 if isinstance(error, LookupError) else 400)
        return StreamingResponse(_until(closing, first, stream), media_type="text/plain")

    app = Starlette(routes=[Route("/containerLogs/{namespace}/{pod}/{container}", answer)])
    # `serving` calls `hub.close` before it waits for open requests.
    app.state.hub = SimpleNamespace(close=closing.set)
    return app


async def _until(closing: asyncio.Event, first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in rest:
        yield piece
        if closing.is_set():
            return


def _options(query: Mapping[str, str]) -> dict[str, Any]:
    """Build the options of `LogSource.open` from the query parameters that an API server sends.

    Raises:
        ValueError: a parameter is not a number or a time.
    """
    since = None
    if query.get("sinceSeconds"):
        since = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
    if query.get("sinceTime"):
        since = parse_time(query["sinceTime"])
    flags = {name: query.get(name, "false") in {"true", "1"} for name in ("follow", "timestamps", "previous")}
    numbers = {"tail_lines": "tailLines", "limit_bytes": "limitBytes"}
    return {
        "since": since,
        **flags,
        **{option: int(query[name]) if query.get(name) else None for option, name in numbers.items()},
    }
