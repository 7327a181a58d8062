"""What a client needs of HTTP: one request with credentials, its response, the errors of both, and the retries.

An error says what the caller has to know, either that the request was never sent (`Unreachable`), or that the server
may have applied it (`ReplyLost`). Log lines and errors contain only the method, path, status, and reason.

`Transport` repeats a request once, after a 401 and with new credentials. `Retries` repeats a read after every transient
failure, and a write only if the server says that it did not process it (429, or 503 with a Retry-After). After any
other failure, the caller has to find out what the write did.

An operation repeats steps that failed around these requests. Without a common deadline these retry budgets multiply.
Inside a `request_deadline` block neither of them starts a retry after the deadline. The deadline applies to the current
asyncio task and to the tasks that it creates in the block.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.cluster.clock import Backoff, ServerClock
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    ClusterError,
    ReplyLost,
    UnexpectedReply,
    error_from_reply,
    is_webhook_unavailable,
)
from airflow_provider_gangjobs.cluster.http.connections import BROKEN, Connections, Request, describe_exception
from airflow_provider_gangjobs.cluster.http.log_reader import LastBytes
from airflow_provider_gangjobs.kube.views import JSON_ERRORS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.cluster.http.connections import Response


PatchType = Literal["merge", "strategic-merge", "json"]
PropagationPolicy = Literal["Background", "Foreground", "Orphan"]
"""How the garbage collector treats the dependents of a deleted object."""


AGGREGATED_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""Accept header of the request for all groups, versions and resources."""
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""Accept header of a write after which the server returns the metadata of the object. A large object costs both sides
more than the write itself."""


class LogQuery(Struct, frozen=True):
    """Which part of a container's log the server returns (`PodLogOptions`)."""

    container: str | None = None
    follow: bool = False
    """Whether the response lasts until the container ends."""
    since_s: int | None = None
    """Unix time in whole seconds. The server leaves out what the container wrote before."""
    timestamps: bool = False
    """Whether each line begins with the time at which the container runtime received it."""
    previous: bool = False
    """Whether to return the log of the container before its last restart."""
    tail_lines: int | None = None
    """How many lines the server returns at most, the last ones. It may be combined with `since_s`."""

    def parameters(self) -> dict[str, str | bool | int | None]:
        since = None
        if self.since_s is not None:
            since = datetime.fromtimestamp(self.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "container": self.container,
            "follow": self.follow or None,
            "sinceTime": since,
            "timestamps": self.timestamps or None,
            "previous": self.previous or None,
            "tailLines": self.tail_lines,
        }


class WatchLimits(Struct, frozen=True):
    """When a watch ends."""

    timeout_s: float = 300.0
    """The server ends the watch after this time, or earlier."""
    idle_margin_s: float = 30.0
    """The connection counts as lost if nothing arrives for this much longer than `timeout_s`."""
    line_bytes_max: int = 16 * 2**20
    """The watch fails when one event is longer. An object in etcd has at most 1.5 MiB. JSON and managedFields make an
    object longer, but not ten times."""


class ClientStatistics(Struct, frozen=True):
    """Counters of a client since it was created."""

    requests: Mapping[str, int]
    """Requests by verb: get, list, watch, create, patch, delete, log. Each retry counts as a request."""
    retries: int
    renewals: int
    """How often the client has loaded its credentials again."""


Json = dict[str, Any]
T = TypeVar("T")


class _ListMeta(msgspec.Struct, frozen=True, gc=False):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_: str | None = msgspec.field(name="continue", default=None)


class ListResponse(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


_object_decoder = msgspec.json.Decoder(dict[str, Any])


@lru_cache(maxsize=16)
def _list_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(ListResponse[kind])


def decode_object(request: str, body: bytes) -> Json:
    """Return the object in the response to `request`, which errors name.

    Raises:
        UnexpectedReply: the body is not an object of an API server.
    """
    return _decode(request, body, _object_decoder)


def decode_list(request: str, body: bytes, kind: type[T]) -> ListResponse[T]:
    """Return one page of a list. Each item is decoded into `kind`: a view of `kube.views`, a dict, or `msgspec.Raw`.

    Raises:
        UnexpectedReply: the body is not a list of such objects.
    """
    decoder: msgspec.json.Decoder[ListResponse[T]] = _list_decoder(cast("Any", kind))
    return _decode(request, body, decoder)


def _decode(request: str, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except JSON_ERRORS as exc:
        message = f"the response does not have the requested type: {exc}"
        raise UnexpectedReply(200, request=request, message=message) from exc


log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0
ERROR_BYTES_MAX = 2**18
BODY_BYTES_MAX = 2**30
"""More than a page of 500 objects of the largest size that etcd stores (1.5 MiB)."""


class Transport:
    """Sends requests to one API server. Connects at the first request, and belongs to one event loop.

    :param requests_max: How many requests are in flight at most, except for streams.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        requests_max: int,
        tcp_keepalive: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._credentials = credentials
        self._connections = Connections(requests_max=requests_max, tcp_keepalive=tcp_keepalive)
        self._monotonic = monotonic
        self.answer_within_s: float | None = None
        """When a request fails whose response has not begun; `None` for its own time limit."""
        self.server_clock = ServerClock(monotonic)
        self.server_software = ""
        """The header `Server` of the last response."""

    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are closed, so that the loop may end. Safe to repeat."""
        await self._connections.aclose()

    async def send(
        self, request: Request, *, timeout_s: float = REQUEST_TIMEOUT_S, bytes_max: int = BODY_BYTES_MAX
    ) -> bytes:
        """Send a request and return the body of the successful response.

        Raises:
            ApiError: the server refused the request.
            TransportError: no complete response arrived within `timeout_s`.
            UnexpectedReply: the body has more than `bytes_max` bytes.
        """
        body: list[bytes] = []
        async with self._successful(request, timeout_s=timeout_s, open_timeout_s=self.answer_within_s) as response:
            async for chunk in response.chunks():
                body.append(chunk)
                bytes_max -= len(chunk)
                if bytes_max < 0:
                    raise UnexpectedReply(response.status, request=str(request), message="the response is too long")
        return body[0] if len(body) == 1 else b"".join(body)

    async def send_for_end(self, request: Request, *, timeout_s: float, bytes_max: int) -> LastBytes:
        """Send a request and return the end of the body, of `bytes_max` bytes, of the successful response.

        Raises:
            ApiError, TransportError: as for `send`.
        """
        end = LastBytes(bytes_max)
        async with self._successful(request, timeout_s=timeout_s, open_timeout_s=self.answer_within_s) as response:
            async for chunk in response.chunks():
                end.feed(chunk)
        return end

    @asynccontextmanager
    async def stream(
        self, request: Request, *, idle_timeout_s: float, open_timeout_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and yield an iterator over the chunks of the response, once its head has arrived.

        Raises:
            ApiError: the server refused the request.
            ReplyLost: no head arrived within `open_timeout_s`, or no data for `idle_timeout_s`.
        """
        open_timeout_s = idle_timeout_s if open_timeout_s is None else open_timeout_s
        async with self._successful(request, open_timeout_s=open_timeout_s) as response:
            yield response.stream(idle_timeout_s)

    @asynccontextmanager
    async def _successful(
        self, request: Request, *, timeout_s: float | None = None, open_timeout_s: float | None = None
    ) -> AsyncIterator[Response]:
        """Send a request and yield the successful response, its body unread. Translates errors of the network."""
        try:
            async with asyncio.timeout(open_timeout_s):
                response = await self._send_authenticated(request, timeout_s)
                if response.status >= 300:
                    try:
                        raise await _error_from_response(request, response)
                    finally:
                        await response.aclose()
            try:
                yield response
            finally:
                await response.aclose()
        except BROKEN as exc:
            raise ReplyLost(str(request), describe_exception(exc)) from exc

    async def _send_authenticated(self, request: Request, timeout_s: float | None) -> Response:
        """Return the response with any status. A 401 is retried once if there are new credentials.

        A 401 means that the request was not processed.
        """
        access = await self._credentials.current()
        response = await self._send_timed(request, access, timeout_s)
        if response.status != 401:
            return response
        try:
            renewed = await self._credentials.renew(access)
        except BaseException:
            await response.aclose()
            raise
        if renewed is access:
            return response
        await response.aclose()
        return await self._send_timed(request, renewed, timeout_s)

    async def _send_timed(self, request: Request, access: Access, timeout_s: float | None) -> Response:
        sent_at = self._monotonic()
        response = await self._connections.send(request, access, timeout_s)
        self.server_clock.observe(response.header("Date"), sent_at=sent_at)
        self.server_software = response.header("Server") or ""
        return response


async def _error_from_response(request: Request, response: Response) -> ApiError:
    body = bytearray()
    async for chunk in response.chunks():
        body += chunk
        if len(body) >= ERROR_BYTES_MAX:
            break
    retry_after = response.header("Retry-After")
    return error_from_reply(response.status, bytes(body), request=str(request), retry_after=retry_after)


_deadline: ContextVar[float] = ContextVar("request_deadline", default=math.inf)


@contextmanager
def request_deadline(at_s: float) -> Iterator[None]:
    """Start no retry after `at_s`, a time of `Clock.monotonic`, in the block. An earlier outer deadline stays."""
    token = _deadline.set(min(at_s, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> float:
    """Return the time of `Clock.monotonic` after which no retry starts; infinity without a deadline."""
    return _deadline.get()


RETRY_FOR_S = 60.0
"""Longer than the restart of an API server or an election of etcd takes."""
BACKOFF_BASE_S = 0.2
BACKOFF_CAP_S = 10.0


READS: Final = frozenset(("get", "list", "log"))
"""The verbs of requests that change nothing."""


class Retries:
    """Retries the requests of one client. Counts them by verb, including the retries."""

    def __init__(self, clock: Clock, *, retry_for_s: float) -> None:
        self._clock = clock
        self._retry_for_s = retry_for_s
        self.requests: Counter[str] = Counter()
        self.retries = 0

    async def send(self, verb: str, send: Callable[[], Awaitable[T]], *, retry_for_s: float | None = None) -> T:
        """Return what `send` returns, which sends one request.

        :param retry_for_s: Do not start a retry later than this many seconds from now.

        Raises:
            ClusterError: the last failure. If `may_have_applied` is true, the server may have processed a write.
        """
        budget_s = self._retry_for_s if retry_for_s is None else retry_for_s
        deadline = min(self._clock.monotonic() + budget_s, current_deadline())
        backoff = Backoff(self._clock, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
        is_reported = False
        while True:
            self.requests[verb] += 1
            try:
                return await send()
            except ClusterError as error:
                pause_s = backoff.next(at_least_s=error.retry_after_s)
                may_retry = error.transient if verb in READS else isinstance(error, ApiError) and error.not_processed
                if not may_retry or self._clock.monotonic() + pause_s > deadline:
                    raise
                if is_webhook_unavailable(error) and not is_reported:
                    is_reported = True
                    log.warning("%s. The request is repeated for at most %.0f s", error, budget_s)
                log.debug("%s; retry in %.1f s", error, pause_s)
            self.retries += 1
            await self._clock.sleep(pause_s)
