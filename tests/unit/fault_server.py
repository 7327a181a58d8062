"""An HTTP server with scripted faults: it refuses requests, stalls, cuts a line in half, or never answers.

The server writes to raw sockets, because an HTTP library sends only valid responses. `ModelApi` is a handler for this
server: a small API server that is correct in everything that an informer needs, except for the faults in its queue.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from gangjobs_sandbox.api.server import drain_accepted

if TYPE_CHECKING:
    import ssl

SECRET = "sesame-open-the-door"
"""The token of the users in kubeconfigs of tests."""


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


class Connection:
    """The connection of one request, over which a handler answers. Each answer ends the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.abandoned = asyncio.Event()

    async def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.head(status, {"Content-Length": str(len(raw)), **(headers or {})})
        self._writer.write(raw)
        await self._writer.drain()

    def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", "Connection: close", *(f"{k}: {v}" for k, v in headers.items())]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")

    def begin_stream(self) -> None:
        self.head(200, {"Transfer-Encoding": "chunked", "Content-Type": "application/json"})

    async def chunk(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def line(self, event: Any) -> None:
        await self.chunk(json.dumps(event).encode() + b"\n")

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def reset(self) -> None:
        self._writer.transport.abort()

    async def silence(self) -> None:
        """Send nothing until the client closes the connection."""
        await self.abandoned.wait()


Handler = Callable[[Request, Connection], Awaitable[None]]


class FaultServer:
    """Serves one handler on a loopback port, and keeps every request."""

    def __init__(self, handler: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self.requests: list[Request] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await drain_accepted(self._server.sockets)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    @property
    def config(self) -> ClusterConfig:
        return config_for(self.url)

    def count(self) -> Counter[str]:
        return Counter("watch" if r.is_watch else "list" if r.method == "GET" else r.method for r in self.requests)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep the writer before the task begins: a task that is cancelled earlier would leave the connection open."""
        self._writers.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        try:
            request = await _read_request(reader)
            if request is not None:
                self.requests.append(request)
                watcher = asyncio.create_task(_watch_for_end(reader, connection))
                try:
                    await self._handler(request, connection)
                finally:
                    watcher.cancel()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in rest if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    return Request(method, parts.path, dict(parse_qsl(parts.query)), headers, body)


async def _watch_for_end(reader: asyncio.StreamReader, connection: Connection) -> None:
    while await reader.read(1024):
        pass
    connection.abandoned.set()


def config_for(url: str, **extras: Any) -> ClusterConfig:
    """Return the configuration of an Airflow connection to `url`."""
    return ClusterConfig.from_extras("test", {"kube_config": kubeconfig(url), **extras})


def kubeconfig(
    url: str, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "this", "user": "me"}}],
        "clusters": [{"name": "this", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "me", "user": {"token": SECRET} if user is None else user}],
    }


def status(code: int, reason: str, message: str = "no", **more: Any) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message, **more}


Fault = Callable[["ModelApi", Request, Connection], Awaitable[None]]


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    name: str
    resource_version: str


class View(msgspec.Struct, frozen=True):
    """What an informer reads of an object of `ModelApi`."""

    metadata: Meta
    value: str = ""


def by_name(view: View) -> str:
    return view.metadata.name


@dataclass
class ModelApi:
    """One collection with versions and history. A request for which a fault is due is answered by the fault."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 100
    history: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    list_faults: list[Fault] = field(default_factory=list)
    watch_faults: list[Fault] = field(default_factory=list)
    every_watch: Fault | None = None
    every_list: Fault | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, name: str, value: str = "", *, key: str | None = None, uid: str | None = None) -> None:
        kind = "MODIFIED" if name in self.objects else "ADDED"
        old_uid = self.objects[name]["metadata"]["uid"] if name in self.objects else f"uid-{name}-{self.version}"
        metadata = {"name": name, "uid": uid or old_uid, "labels": {"key": key or name}}
        self._commit(kind, {"metadata": metadata, "value": value})

    def delete(self, name: str) -> None:
        self._commit("DELETED", dict(self.objects[name]))

    def cut_watches(self) -> None:
        """End all open watches, as a restart of the server does."""
        self._wake(ends=True)

    def _commit(self, kind: str, obj: dict[str, Any]) -> None:
        self.version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        if kind == "DELETED":
            del self.objects[obj["metadata"]["name"]]
        else:
            self.objects[obj["metadata"]["name"]] = obj
        self.history.append((self.version, {"type": kind, "object": obj}))
        self._wake()

    def _wake(self, *, ends: bool = False) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.ends = ends  # type: ignore[attr-defined]
        changed.set()

    async def handle(self, request: Request, connection: Connection) -> None:
        faults = self.watch_faults if request.is_watch else self.list_faults
        always = self.every_watch if request.is_watch else self.every_list
        if faults:
            await faults.pop(0)(self, request, connection)
        elif always:
            await always(self, request, connection)
        elif request.is_watch:
            await self.serve_watch(request, connection)
        else:
            await self.serve_list(request, connection)

    async def serve_list(self, request: Request, connection: Connection) -> None:
        names = sorted(self.objects)
        limit = int(request.query.get("limit", 0)) or len(names)
        start = int(request.query.get("continue", 0))
        more = start + limit < len(names)
        metadata = {"resourceVersion": str(self.version), "continue": str(start + limit) if more else ""}
        items = [self.objects[name] for name in names[start : start + limit]]
        await connection.reply(200, {"kind": "List", "metadata": metadata, "items": items})

    async def serve_watch(self, request: Request, connection: Connection) -> None:
        version = int(request.query["resourceVersion"])
        connection.begin_stream()
        while True:
            changed = self._changed
            for at, event in [e for e in self.history if e[0] > version]:
                await connection.line(event)
                version = at
            await changed.wait()
            if changed.ends:  # type: ignore[attr-defined]
                await connection.end_stream()
                return


async def forbidden(_: ModelApi, __: Request, connection: Connection) -> None:
    await connection.reply(403, status(403, "Forbidden", "may not"))


async def gone(_: ModelApi, __: Request, connection: Connection) -> None:
    await connection.reply(410, status(410, "Expired"))


async def internal_error(_: ModelApi, __: Request, connection: Connection) -> None:
    await connection.reply(500, status(500, "InternalError"))


async def bad_gateway(_: ModelApi, __: Request, connection: Connection) -> None:
    await connection.reply(502, b"<html><body>Bad Gateway</body></html>", {"Content-Type": "text/html"})


async def login_page(_: ModelApi, __: Request, connection: Connection) -> None:
    await connection.reply(200, b"<html><body>Please log in</body></html>", {"Content-Type": "text/html"})


async def unauthorized(_: ModelApi, __: Request, connection: Connection) -> None:
    await connection.reply(401, status(401, "Unauthorized"))


async def reset_mid_line(_: ModelApi, __: Request, connection: Connection) -> None:
    connection.begin_stream()
    await connection.chunk(b'{"type":"MODIFIED","object":{"metadata":{"na')
    connection.reset()


async def reset_at_once(_: ModelApi, __: Request, connection: Connection) -> None:
    connection.reset()


async def half_open(_: ModelApi, __: Request, connection: Connection) -> None:
    connection.begin_stream()
    await connection.silence()


async def no_head(_: ModelApi, __: Request, connection: Connection) -> None:
    await connection.silence()


async def close_at_once(_: ModelApi, __: Request, connection: Connection) -> None:
    connection.begin_stream()
    await connection.end_stream()


def too_many_requests(retry_after: str) -> Fault:
    async def fault(_: ModelApi, __: Request, connection: Connection) -> None:
        await connection.reply(429, status(429, "TooManyRequests"), {"Retry-After": retry_after})

    return fault


def refusing(code: int, reason: str, **fields: Any) -> Fault:
    """Return a fault that answers with this `Status`."""

    async def fault(_: ModelApi, __: Request, connection: Connection) -> None:
        await connection.reply(code, status(code, reason, **fields))

    return fault


async def echo(request: Request, connection: Connection) -> None:
    """A handler that answers each request with a description of the request."""
    body = json.loads(request.body) if request.body else None
    seen = {"method": request.method, "path": request.path, "query": request.query, "body": body}
    await connection.reply(200, {**seen, "type": request.headers.get("content-type")})


def failing_first(*faults: Fault) -> Handler:
    """Return a handler that answers the first requests with these faults, and each later one with an object."""
    due = list(faults)

    async def handle(request: Request, connection: Connection) -> None:
        if due:
            await due.pop(0)(ModelApi(), request, connection)
        else:
            await connection.reply(200, {"metadata": {"name": "a"}})

    return handle
