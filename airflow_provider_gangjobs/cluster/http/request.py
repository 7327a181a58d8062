"""An HTTP request to an API server, independent of the HTTP library that sends it.

Options of a request that callers choose, and the counters of a client.

Decodes the responses of an API server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from urllib.parse import unquote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.cluster.errors import UnexpectedReply

if TYPE_CHECKING:
    import ssl

    from airflow_provider_gangjobs.cluster.auth.credential_source import Access


class PatchType(StrEnum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class ResponseFormat(Enum):
    """How much of the written object the server returns. A large object costs both sides more than the write itself.

    The value is the Accept header.
    """

    OBJECT = "application/json"
    METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


class PropagationPolicy(StrEnum):
    """How the garbage collector treats the dependents of a deleted object."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


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


USER_AGENT = f"airflow-provider-gangjobs/{__version__}"
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
    content_type: str = "application/json"
    accept: str = "application/json"

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


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy, and the user and the password for it."""

    url: str
    """The URL without credentials, which may be logged."""
    login: tuple[str, str] | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """Return the proxy in a URL.

        Raises:
            ValueError: the URL is not one of an HTTP proxy. The message does not contain the URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"proxies of type {parts.scheme!r} are not supported")
        if not parts.hostname or parts.port == 0:
            raise ValueError("the URL has no host")
        login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", login)

    def headers(self) -> Headers:
        """Return the headers that only the proxy may see."""
        if self.login is None:
            return []
        return [("Proxy-Authorization", f"Basic {base64.b64encode(':'.join(self.login).encode()).decode()}")]


@dataclass(frozen=True)
class Route:
    """How an API server is reached. Connections of equal routes are interchangeable."""

    tls: ssl.SSLContext | None = field(repr=False)
    """`None` for a server without TLS. As in Go's client, it also verifies a proxy with TLS."""
    server_hostname: str | None
    """The name in the server's certificate, if it is not the host of the URL."""
    proxy: Proxy | None

    @classmethod
    def of(cls, access: Access) -> Route:
        """Return the route to the server of `access`.

        Raises:
            ValueError: the URL of the proxy is not one of an HTTP proxy. The message does not contain the URL.
        """
        return cls(access.ssl, access.server_hostname, Proxy.parse(access.proxy) if access.proxy else None)


Json = dict[str, Any]
T = TypeVar("T")


class _ListMeta(msgspec.Struct, frozen=True, gc=False):
    continue_: str | None = msgspec.field(name="continue", default=None)


class ListResponse(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


_object_decoder = msgspec.json.Decoder(dict[str, Any])


@lru_cache(maxsize=16)
def _list_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(ListResponse[kind])


def decode_object(request: Request, body: bytes) -> Json:
    """Return the object in the response to `request`.

    Raises:
        UnexpectedReply: the body is not an object of an API server.
    """
    return _decode(request, body, _object_decoder)


def decode_list(request: Request, body: bytes, kind: type[T]) -> ListResponse[T]:
    """Return one page of a list. Each item is decoded into `kind`: a view of `kube.views`, or a dict.

    Raises:
        UnexpectedReply: the body is not a list of such objects.
    """
    decoder: msgspec.json.Decoder[ListResponse[T]] = _list_decoder(cast("Any", kind))
    return _decode(request, body, decoder)


def _decode(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as exc:
        message = f"the response does not have the requested type: {exc}"
        raise UnexpectedReply(200, request=str(request), message=message) from exc
