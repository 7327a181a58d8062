"""A proxy between one process of the provider and a real API server, which injects one fault.

The fault is a fault of the sandbox's API server, and applies to the first request of one kind, such as "PATCH pods".
After a fatal fault the proxy drops all later requests, as if the process behind the proxy had died.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml
from starlette.applications import Starlette
from starlette.routing import Mount

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from gangjobs_sandbox.api.faults import Fault, FaultKind, FaultMiddleware, Faults
from gangjobs_sandbox.api.server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from starlette.types import Receive, Scope, Send

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

DROPPED = Fault(FaultKind.DROP_BEFORE, times=None)
PASSED_ON = ("authorization", "content-type", "accept", "user-agent")
PASSED_BACK = ("content-type", "retry-after")
NO_EXEMPT_PREFIX = "/of-the-proxy-itself"

_OBJECTS = re.compile(r"/namespaces/[^/]+/(?P<plural>[a-z]+)(?P<name>/[^/]+)?$")


def kind_of(method: str, path: str, query: str) -> str:
    """Return the kind of a request, such as `LIST pods` or `WATCH jobs`. A path without a namespace is `discovery`."""
    found = _OBJECTS.search(path)
    if found is None:
        return f"{method} discovery"
    if method == "GET" and not found["name"]:
        method = "WATCH" if "watch=true" in query else "LIST"
    return f"{method} {found['plural']}"


class InjectedFault(Faults):
    """A fault for the first request of a kind. `requests` has the kinds of all requests."""

    def __init__(self, kind: str = "", fault: Fault = DROPPED, *, is_fatal: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.requests: list[str] = []
        self.was_injected = asyncio.Event()
        self._fault = fault
        self._is_fatal = is_fatal

    @property
    def is_dead(self) -> bool:
        """Whether the fault has ended the process behind the proxy."""
        return self._is_fatal and self.was_injected.is_set()

    def take(self, method: str, path: str, query: str) -> Fault | None:
        if self.is_dead:
            return DROPPED
        kind = kind_of(method, path, query)
        self.requests.append(kind)
        if kind != self.kind or self.was_injected.is_set():
            return None
        self.was_injected.set()
        return self._fault


class FaultProxy:
    """A proxy in front of one API server. Each process has a path prefix, and faults of its own."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._closing = asyncio.Event()
        self._url = ""
        self._processes: dict[str, FaultMiddleware] = {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, plane: ControlPlane) -> AsyncIterator[FaultProxy]:
        """Run a proxy to this control plane while the block runs."""
        async with plane.async_client() as http:
            proxy = cls(http)
            app = Starlette(routes=[Mount("/", proxy.dispatch)])
            app.state.hub = SimpleNamespace(close=proxy._closing.set)
            async with serving(app) as address:
                proxy._url = address.url
                yield proxy

    def config_with_fault(self, tenant: Tenant, fault: Faults) -> ClusterConfig:
        """Return a connection of the tenant for one process whose requests meet these faults."""
        prefix = f"process-{len(self._processes)}"
        self._processes[prefix] = FaultMiddleware(self.forward, fault, exempt_prefix=NO_EXEMPT_PREFIX)
        content: dict[str, Any] = yaml.safe_load(tenant.kubeconfig.read_text())
        content["clusters"][0]["cluster"] = {"server": f"{self._url}/{prefix}"}
        return ClusterConfig.from_extras("proxy", {"kube_config": content, "namespace": tenant.namespace})

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request with the faults of the process that has sent it."""
        _, prefix, path = scope["path"].split("/", 2)
        await self._processes[prefix]({**scope, "path": f"/{path}"}, receive, send)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and send the response back in pieces, until the response or the connection ends."""
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        begun = asyncio.Event()
        answering = asyncio.create_task(self._answer(scope, body, send, begun), name="proxy")
        beginning = asyncio.create_task(begun.wait())
        ends = [asyncio.create_task(_left(receive)), asyncio.create_task(self._closing.wait())]
        try:
            await asyncio.wait([answering, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # httpx leaks a connection whose request is cancelled while the connection is being established.
            await asyncio.wait([answering, beginning], return_when=asyncio.FIRST_COMPLETED)
            for task in (answering, beginning, *ends):
                task.cancel()
            await asyncio.gather(answering, beginning, *ends, return_exceptions=True)

    async def _answer(self, scope: Scope, body: bytes, send: Send, begun: asyncio.Event) -> None:
        url = scope["path"] + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name.decode() in PASSED_ON}
        headers["accept-encoding"] = "identity"
        async with self._http.stream(scope["method"], url, headers=headers, content=body) as answer:
            begun.set()
            headers = [(name.encode(), answer.headers[name].encode()) for name in PASSED_BACK if name in answer.headers]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
