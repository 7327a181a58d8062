"""The node's API client: a few verbs over HTTP, which every Kubernetes API server supports, and watches on top of them.

A refusal is raised as `StatusError`, with the content that the server sent. `UnreachableError` means that no answer
came, so the server may or may not have applied a write. The client does not repeat requests: the caller knows whether a
repetition is safe.

A watch resumes from the last resource version, including bookmarks. After 410 the objects are listed again, and the
`Listed` that follows shows which objects are gone. While the server cannot be reached, the watch waits with jitter
between its attempts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import ssl
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import httpx
import yaml

from gangjobs_sandbox.errors import StatusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

__all__ = ["MERGE", "STRATEGIC", "ApiClient", "Changed", "Listed", "UnreachableError", "core_path", "list_and_watch"]


STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
_TIMEOUT_S = 30.0
_CONNECTIONS_MAX = 12
"""The limit for short requests. Each request scans every connection of the pool, so a larger pool is slower."""
WATCH_SILENCE_S = 75.0
"""A watch without events or bookmarks for this time is considered half-open: servers send a bookmark every minute."""


_log = logging.getLogger(__name__)
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 0.2, 10.0
_WATCH_S = 300
_PAUSE_S = 0.1
_GONE = (410, 504)
"""The version has expired, or lies in the future because the server has lost data."""


class UnreachableError(Exception):
    """The API server did not answer. It is unknown whether the server received the request."""


def core_path(plural: str, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
    """Return the path of a resource in the core API group."""
    parts = ["/api/v1", *(["namespaces", namespace] if namespace else []), plural, name, subresource]
    return "/".join(part for part in parts if part)


class ApiClient:
    """A connection pool to one API server. The nodes of one process share one client."""

    def __init__(self, url: str, *, token: str | None = None, verify: ssl.SSLContext | bool = True) -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}

        def pool(connections_max: int | None) -> httpx.AsyncClient:
            limits = httpx.Limits(max_connections=connections_max, max_keepalive_connections=_CONNECTIONS_MAX)
            return httpx.AsyncClient(
                base_url=url, headers=headers, verify=verify, timeout=_TIMEOUT_S, limits=limits, trust_env=False
            )

        self._requests, self._watches = pool(_CONNECTIONS_MAX), pool(None)

    @classmethod
    def from_kubeconfig(cls, path: Path, context: str | None = None) -> ApiClient:
        """Build a client for a context of a kubeconfig that has a token or a client certificate.

        Without `context`, the client uses the current context.

        Raises:
            ValueError: the context, its cluster or its user is not in the file, or a certificate cannot be loaded.
        """
        config = yaml.safe_load(path.read_text())
        wanted = context or config.get("current-context")
        chosen = _entry(config, "contexts", wanted, path)["context"]
        cluster = _entry(config, "clusters", chosen["cluster"], path)["cluster"]
        user = _entry(config, "users", chosen["user"], path)["user"]
        try:
            verify = _ssl_context(cluster, user)
        except OSError as error:
            raise ValueError(f"{path}: cannot load the certificates of context {wanted!r}: {error}") from error
        return cls(cluster["server"], token=user.get("token"), verify=verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._requests.aclose()
        await self._watches.aclose()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return await self._request("GET", path, params=params)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._request("POST", path, json.dumps(body))

    async def patch(self, path: str, body: Mapping[str, Any], kind: str = STRATEGIC) -> dict[str, Any]:
        return await self._request("PATCH", path, json.dumps(body), content_type=kind)

    async def delete(self, path: str, *, uid: str, grace_period_s: int) -> None:
        """Delete the object only if it has this UID."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body = options | {"gracePeriodSeconds": grace_period_s, "preconditions": {"uid": uid}}
        await self._request("DELETE", path, json.dumps(body))

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of one watch request until the server ends it. Raises UnreachableError if it breaks."""
        timeout = httpx.Timeout(_TIMEOUT_S, read=WATCH_SILENCE_S)
        try:
            async with self._watches.stream(
                "GET",
                path,
                params={**params, "watch": "1"},
                timeout=timeout,
                extensions=_close_if_cancelled(),
            ) as response:
                if response.is_error:
                    raise _refusal(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    if line:
                        yield json.loads(line)
        except httpx.TransportError as error:
            raise _unreachable("watch", path, error) from error

    async def _request(
        self,
        verb: str,
        path: str,
        body: str | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Content-Type": content_type} if body is not None else {}
        try:
            response = await self._requests.request(
                verb, path, content=body, params=params, headers=headers, extensions=_close_if_cancelled()
            )
        except httpx.TransportError as error:
            raise _unreachable(verb, path, error) from error
        if response.is_error:
            raise _refusal(response.status_code, response.content)
        answer: dict[str, Any] = response.json()
        return answer


def _close_if_cancelled() -> dict[str, Any]:
    """Return extensions that close a connection if its TLS handshake is cancelled. httpcore does not close it."""
    opened: list[Any] = []

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            opened.append(info["return_value"])
        elif event == "connection.start_tls.failed":
            for stream in opened:
                await stream.aclose()

    return {"trace": trace}


def _unreachable(verb: str, path: str, error: httpx.TransportError) -> UnreachableError:
    return UnreachableError(f"{verb} {path}: {type(error).__name__}: {error}")


def _refusal(code: int, body: bytes) -> StatusError:
    """Build the error from the server's Status. Other bodies may hold anything, so only the code is used."""
    try:
        status = json.loads(body)
    except ValueError:
        status = {}
    if not isinstance(status, dict) or status.get("kind") != "Status":
        return StatusError(code, "Unknown", f"the server answered {code} without a Status")
    details = status.get("details")
    return StatusError(code, status.get("reason") or "Unknown", status.get("message") or "", details)


def _entry(config: Mapping[str, Any], kind: str, name: str | None, path: Path) -> Mapping[str, Any]:
    for entry in config.get(kind) or ():
        if entry["name"] == name:
            found: Mapping[str, Any] = entry
            return found
    raise ValueError(f"{path}: no entry {name!r} in {kind}")


def _ssl_context(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext | bool:
    if not str(cluster["server"]).startswith("https"):
        return True
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(authority).decode() if authority else None,
    )
    # Other Kubernetes clients and Python before 3.13 also skip this check: kubeadm's CAs have no Authority Key
    # Identifier.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _file_of(user, "client-certificate") as certificate, _file_of(user, "client-key") as key:
        if certificate:
            context.load_cert_chain(certificate, key)
    return context


@contextmanager
def _file_of(entry: Mapping[str, Any], field: str) -> Iterator[str | None]:
    """Yield the path of a file with the content of the field or its `-data` form. The ssl module reads files only."""
    data = entry.get(f"{field}-data")
    if not data:
        yield entry.get(field)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(base64.b64decode(data))
        file.flush()
        yield file.name


@dataclass(frozen=True)
class Listed:
    """All existing objects. Other objects that the caller knows are gone."""

    items: list[dict[str, Any]]


@dataclass(frozen=True)
class Changed:
    """An event of type ADDED, MODIFIED or DELETED."""

    kind: str
    item: dict[str, Any]


class _ExpiredError(Exception):
    """The server no longer has the version from which the watch would resume."""


async def list_and_watch(client: ApiClient, path: str, params: Mapping[str, str]) -> AsyncIterator[Listed | Changed]:
    """Yield a `Listed` first, and then each change. The iteration does not end by itself."""
    backoff = _BACKOFF_FIRST_S
    version = ""
    while True:
        try:
            if not version:
                listed = await client.get(path, params)
                version = listed["metadata"]["resourceVersion"]
                yield Listed(listed.get("items") or [])
            async for event in _watch_once(client, path, params, version):
                backoff = _BACKOFF_FIRST_S
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield Changed(event["type"], event["object"])
        except _ExpiredError:
            version = ""
        except (UnreachableError, StatusError) as error:
            _log.debug("watch of %s interrupted, next try in %.1f s: %s", path, backoff, error)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            backoff = min(backoff * 2, _BACKOFF_MAX_S)


async def _watch_once(
    client: ApiClient, path: str, params: Mapping[str, str], version: str
) -> AsyncIterator[dict[str, Any]]:
    options = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
    try:
        async for event in client.watch(path, {**params, **options}):
            if event["type"] == "ERROR":
                status = event["object"]
                raise StatusError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
            yield event
    except StatusError as error:
        if error.code in _GONE:
            raise _ExpiredError from error
        raise
    # A pause prevents a busy loop if the server ends every watch at once.
    await asyncio.sleep(_PAUSE_S)
