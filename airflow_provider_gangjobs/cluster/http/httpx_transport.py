"""A transport over httpx, for a process that sends some requests and ends.

Only httpx's connection pools are used: its client would read proxies and cookies, and follow redirections.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast

import httpx

from airflow_provider_gangjobs.cluster.errors import ReplyLost, TlsFailed, TransportError, Unreachable
from airflow_provider_gangjobs.cluster.http.transport import (
    CONNECT_TIMEOUT_S,
    KEEPALIVE_OPTIONS,
    Transport,
    describe_exception,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials
    from airflow_provider_gangjobs.cluster.http.transport import Request

REQUEST_CONNECTIONS_MAX: Final = 4
"""Limits the requests in flight. Only logs are read concurrently, and each further connection costs a handshake."""
IDLE_MAX_S: Final = 15.0
"""Load balancers close connections that are idle for longer, possibly at the moment of the next request."""


class HttpxTransport(Transport):
    """A pool of connections to one API server. Requests share some of them; each stream has one of its own."""

    def __init__(self, credentials: Credentials, *, tcp_keepalive: bool, monotonic: Callable[[], float]) -> None:
        super().__init__(credentials, tcp_keepalive=tcp_keepalive, monotonic=monotonic)
        self._free = asyncio.Semaphore(REQUEST_CONNECTIONS_MAX)
        self._pools: dict[Hashable, httpx.AsyncHTTPTransport] = {}
        """By the TLS context, the name of the server, and the proxy."""

    async def aclose(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    async def _send_once(self, request: Request, access: Access, timeout_s: float | None) -> _Response:
        encoded = _encoded(request, access)
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        async with asyncio.timeout_at(deadline), AsyncExitStack() as on_failure:
            if timeout_s is not None:
                await on_failure.enter_async_context(self._free)
            response = await self._send(request, encoded, access)
            return _Response(response, deadline, on_failure.pop_all())

    async def _send(self, request: Request, encoded: httpx.Request, access: Access) -> httpx.Response:
        route = access.ssl, access.server_hostname, access.proxy
        if route not in self._pools:
            self._pools[route] = _pool(access, tcp_keepalive=self._tcp_keepalive)
        try:
            response = await self._pools[route].handle_async_request(encoded)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as exc:
            cause = _root_cause(exc)
            error = TlsFailed if isinstance(cause, ssl.SSLError) else Unreachable
            where = encoded.url.netloc.decode("ascii")
            raise error(str(request), f"{where}: {describe_exception(cause)}") from exc
        except httpx.LocalProtocolError:
            raise _invalid(request) from None
        response.stream = _SoleBody(response)
        return response

    def _classify(self, exc: BaseException) -> type[TransportError] | None:
        return ReplyLost if isinstance(exc, httpx.RequestError | TimeoutError | OSError) else None


def _encoded(request: Request, access: Access) -> httpx.Request:
    """Return the request for httpx.

    Raises:
        Unreachable: HTTP does not allow it, so it was not sent.
    """
    try:
        return httpx.Request(
            request.method,
            f"{access.base_url}{request.target}",
            headers=[("Accept-Encoding", "gzip"), *request.headers(access)],
            content=request.body,
            extensions={"timeout": {"connect": CONNECT_TIMEOUT_S}},
        )
    except (UnicodeEncodeError, httpx.InvalidURL):
        raise _invalid(request) from None


def _invalid(request: Request) -> Unreachable:
    """Return the error of a request that cannot be sent. It does not quote the header, which may be a credential."""
    return Unreachable(str(request), "HTTP does not allow the path or a header of this request")


def _root_cause(exc: BaseException) -> BaseException:
    """Return the error of the operating system or of TLS, which the messages of httpx leave out."""
    while isinstance(inner := exc.__cause__ or exc.__context__, Exception):
        exc = inner.exceptions[0] if isinstance(inner, ExceptionGroup) else inner
    return exc


def _pool(access: Access, *, tcp_keepalive: bool) -> httpx.AsyncHTTPTransport:
    context = access.ssl or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    proxy = None
    if access.proxy is not None:
        # As in Go's client, the context of the API server also verifies a proxy with TLS.
        of_proxy = context if access.proxy.url.startswith("https") else None
        proxy = httpx.Proxy(access.proxy.url, ssl_context=of_proxy, headers=access.proxy.headers)
    return httpx.AsyncHTTPTransport(
        verify=_NamedContext(context, access.server_hostname) if access.server_hostname else context,
        limits=httpx.Limits(keepalive_expiry=IDLE_MAX_S),
        proxy=proxy,
        socket_options=KEEPALIVE_OPTIONS if tcp_keepalive else None,
    )


class _NamedContext(ssl.SSLContext):
    """A TLS context that expects a name of its own in the server's certificate.

    httpx has a setting for this name, but uses it for the connection to a proxy, and not for the one behind the proxy.
    """

    def __new__(cls, context: ssl.SSLContext, server_hostname: str) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._context = context
        self._server_hostname = server_hostname

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *_: Any, **__: Any) -> ssl.SSLObject:
        return self._context.wrap_bio(incoming, outgoing, server_hostname=self._server_hostname)


class _SoleBody(httpx.AsyncByteStream):
    """The body of a response. The connection is closed if anything follows it.

    httpx would take that for the response to the next request, as a broken proxy could make it. Its parser knows what
    follows, but no public attribute shows it.
    """

    def __init__(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._body = response.stream
        self._connection = response.extensions["network_stream"]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part
        if self._is_followed():
            await self._connection.aclose()

    def _is_followed(self) -> bool:
        parser: Any = self._body
        for name in ("_httpcore_stream", "_stream", "_connection", "_h11_state"):
            parser = getattr(parser, name, None)
        return parser is not None and bool(parser.trailing_data[0])

    async def aclose(self) -> None:
        await self._body.aclose()


class _Response:
    def __init__(self, response: httpx.Response, deadline: float | None, on_close: AsyncExitStack) -> None:
        self._response = response
        self._deadline = deadline
        self._on_close = on_close
        on_close.push_async_callback(response.aclose)
        self.status = response.status_code

    def header(self, name: str) -> str | None:
        value: str | None = self._response.headers.get(name)
        return value

    def chunks(self) -> AsyncIterator[bytes]:
        return self._limited(partial(asyncio.timeout_at, self._deadline))

    def stream(self, idle_timeout_s: float) -> AsyncIterator[bytes]:
        return self._limited(partial(asyncio.timeout, idle_timeout_s))

    async def aclose(self) -> None:
        await self._on_close.aclose()

    async def _limited(self, limit: Callable[[], asyncio.Timeout]) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body, with a new time limit for each part."""
        async with aclosing(cast("AsyncGenerator[bytes, None]", self._response.aiter_bytes())) as parts:
            while True:
                async with limit():
                    part = await anext(parts, None)
                if part is None:
                    return
                yield part
