"""An HTTP request to an API server, independent of the HTTP library that sends it."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode, urlsplit

from msgspec import Struct

from airflow_provider_gangjobs import __version__

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.auth.credentials import Access

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
class ServerAddress:
    """Where a server is, from its URL. Addresses that are equal can share connections."""

    host: str
    port: int
    host_header: str
    path_prefix: str
    """The start of every path, for a gateway that serves several clusters. Empty, or begins with a slash."""
    tls: ssl.SSLContext | None = field(repr=False)
    """`None` for a server without TLS."""
    server_hostname: str | None
    """The name that the server's certificate must contain. `None` without TLS."""

    @classmethod
    def of(cls, access: Access) -> ServerAddress:
        """Return the address of the API server.

        Raises:
            ValueError: the URL has no host, or its port is not a number.
        """
        return cls.parse(access.base_url, access.ssl, server_hostname=access.server_hostname)

    @classmethod
    def parse(cls, url: str, context: ssl.SSLContext | None, *, server_hostname: str | None = None) -> ServerAddress:
        """Return the address in a URL. Without a context, an https server is verified by the CAs of the system.

        Raises:
            ValueError: the URL has no host, or its port is not a number.
        """
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError("the URL has no host")
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if is_tls else 80),
            host_header=parts.netloc.rpartition("@")[2],
            path_prefix=parts.path.rstrip("/"),
            tls=(context or ssl.create_default_context()) if is_tls else None,
            server_hostname=(server_hostname or parts.hostname) if is_tls else None,
        )


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy, and the user and the password for it."""

    address: ServerAddress
    login: tuple[str, str] | None = field(repr=False)

    @classmethod
    def of(cls, access: Access) -> Proxy | None:
        """Return the proxy between the client and the API server, if there is one.

        As in Go's client, a proxy with TLS is verified by the CAs of the API server.

        Raises:
            ValueError: the URL is not one of an HTTP proxy. The message does not contain the URL.
        """
        if not access.proxy:
            return None
        parts = urlsplit(access.proxy)
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"proxies of type {parts.scheme!r} are not supported")
        login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(ServerAddress.parse(access.proxy, access.ssl), login)

    @property
    def url(self) -> str:
        """The URL without credentials, which may be logged."""
        return f"{'https' if self.address.tls else 'http'}://{self.address.host_header}"

    def headers(self) -> Headers:
        """Return the headers that only the proxy may see."""
        if self.login is None:
            return []
        return [("Proxy-Authorization", f"Basic {base64.b64encode(':'.join(self.login).encode()).decode()}")]
