"""The API server: a Starlette application over a registry."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from email.utils import format_datetime
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gangjobs_sandbox import errors
from gangjobs_sandbox.api import bodies, discovery
from gangjobs_sandbox.api.discovery import document, index
from gangjobs_sandbox.api.faults import FaultMiddleware, Faults, manage_faults
from gangjobs_sandbox.api.negotiation import is_aggregated
from gangjobs_sandbox.api.objects import ObjectsApi
from gangjobs_sandbox.api.responses import failure, json_response, ok
from gangjobs_sandbox.api.routing import groups, parse_path
from gangjobs_sandbox.api.watching import WatchHub
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.journal import UnwritableJournalError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gangjobs_sandbox.api.logs import LogSource
    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.registry import Registry

__all__ = ["BOOKMARK_S", "SERVER", "create_app"]

BOOKMARK_S = 60.0
"""The interval of bookmarks in a watch, in seconds; the same as that of the API server."""

SERVER = "gangjobs-sandbox"
"""The header `Server` of the responses. A kube-apiserver sends no such header, and a client can tell the two apart."""

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
_ADMIN = "/sandbox/"

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    registry: Registry,
    *,
    token: str | None,
    logs: LogSource | None = None,
    faults: Faults | None = None,
    bookmark_s: float = BOOKMARK_S,
) -> Starlette:
    """Build the application.

    With a `token`, all paths except health and version require it as a bearer token. `app.state.hub` is the `WatchHub`,
    whose `close` ends all watches; `app.state.faults` are the `Faults` that can be armed.
    """
    hub = WatchHub(registry.store)
    armed = faults or Faults()
    server = _Server(registry, ObjectsApi(registry, hub, logs, bookmark_s=bookmark_s), armed)
    app = Starlette(
        routes=server.routes(),
        middleware=[
            Middleware(_Date, clock=registry.clock),
            Middleware(FaultMiddleware, faults=armed, exempt_prefix=_ADMIN),
            Middleware(_Authentication, token=token),
        ],
        exception_handlers={
            StatusError: _on_status_error,
            UnwritableJournalError: _on_unwritable,
            ClientDisconnect: _on_client_disconnect,
            404: _on_no_route,
            405: _on_wrong_method,
            Exception: _on_bug,
        },
    )
    app.state.hub = hub
    app.state.faults = armed
    return app


class _Date:
    """Adds the headers Date and Server to each response. The date is from the clock that also writes into objects."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = format_datetime(self._clock.now(), usegmt=True).encode()
                identity = [(b"date", date), (b"server", SERVER.encode())]
                message = {**message, "headers": [*message.get("headers", ()), *identity]}
            await send(message)

        await self._app(scope, receive, dated)


class _Authentication:
    """Refuses requests without the bearer token."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._expected is None or scope["path"].startswith(_PUBLIC):
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(sent, self._expected):
            await self._app(scope, receive, send)
        else:
            await failure(errors.unauthorized())(scope, receive, send)


class _Server:
    """The endpoints."""

    def __init__(self, registry: Registry, objects: ObjectsApi, faults: Faults) -> None:
        self._registry = registry
        self._release = registry.release
        self._objects = objects
        self._faults = faults

    def routes(self) -> list[Route]:
        table: dict[str, Endpoint] = {
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": self._review,
            "/api/{version}/{rest:path}": self._object,
            "/apis/{group}/{version}/{rest:path}": self._object,
            "/healthz": self._health,
            "/livez": self._health,
            "/readyz": self._health,
            "/version": self._version,
            "/api": self._api,
            "/apis": self._apis,
            "/apis/{group}": self._group,
            "/api/{version}": self._resources,
            "/apis/{group}/{version}": self._resources,
            "/openapi/v3": self._openapi_index,
            "/openapi/v3/{path:path}": self._openapi,
            "/sandbox/faults": self._manage_faults,
        }
        return [Route(path, endpoint, methods=_METHODS) for path, endpoint in table.items()]

    async def _health(self, request: Request) -> Response:
        return ok()

    async def _version(self, request: Request) -> Response:
        return json_response(discovery.version(self._release))

    async def _api(self, request: Request) -> Response:
        if is_aggregated(request.headers.get("accept", "")):
            return self._aggregated(core=True)
        return json_response(discovery.api_versions(request.url.netloc))

    async def _apis(self, request: Request) -> Response:
        if is_aggregated(request.headers.get("accept", "")):
            return self._aggregated(core=False)
        return json_response(discovery.group_list(self._release))

    def _aggregated(self, *, core: bool) -> Response:
        headers = {"Content-Type": discovery.AGGREGATED, "Vary": "Accept"}
        return json_response(discovery.aggregated(self._release, core=core), headers=headers)

    async def _group(self, request: Request) -> Response:
        return _found(discovery.group_of(self._release, request.path_params["group"]))

    async def _resources(self, request: Request) -> Response:
        group = request.path_params.get("group", "")
        return _found(discovery.resource_list(self._release, group, request.path_params["version"]))

    async def _openapi_index(self, request: Request) -> Response:
        return json_response(index(groups(self._release)))

    async def _openapi(self, request: Request) -> Response:
        return _found(document(self._release, request.path_params["path"]))

    async def _manage_faults(self, request: Request) -> Response:
        return await manage_faults(request, self._faults)

    async def _review(self, request: Request) -> Response:
        """Allow everything: the sandbox has no authorization beyond the token."""
        if request.method != "POST":
            raise errors.method_not_allowed()
        review = await bodies.read_object(request, "SelfSubjectAccessReview")
        head = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}}
        return json_response(head | review | {"status": {"allowed": True}}, 201)

    async def _object(self, request: Request) -> Response:
        parameters = request.path_params
        if not parameters["rest"]:
            return await self._resources(request)
        target = parse_path(parameters.get("group", ""), parameters["version"], parameters["rest"], self._release)
        if target is None:
            raise _not_found()
        return await self._objects.handle(request, target)


def _found(value: object | None) -> Response:
    if value is None:
        raise _not_found()
    return json_response(value)


def _not_found() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


async def _on_status_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StatusError)
    return failure(error)


async def _on_unwritable(request: Request, error: Exception) -> Response:
    """Respond as the API server does when its etcd has no room."""
    return failure(StatusError(500, "InternalError", f"Internal error occurred: {error}"))


async def _on_client_disconnect(request: Request, error: Exception) -> Response:
    """Handle a client that disconnected before the end of its request. The request is not executed."""
    return failure(errors.bad_request("the client has disconnected"))


async def _on_no_route(request: Request, error: Exception) -> Response:
    return failure(_not_found())


async def _on_wrong_method(request: Request, error: Exception) -> Response:
    return failure(errors.method_not_allowed())


async def _on_bug(request: Request, error: Exception) -> Response:
    """Respond with a `Status` of code 500 after a bug in the sandbox. The server logs the traceback."""
    return failure(StatusError(500, "InternalError", f"Internal error occurred: {type(error).__name__}"))
