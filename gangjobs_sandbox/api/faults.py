"""Fault injection: an ASGI middleware that delays, breaks or replaces responses on demand.

A fault applies to the requests that match it, and expires after a given number of such requests. A connection can break
before the server executes the request, or after it: these are different faults, because a client has to handle both.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.api.responses import failure, json_response
from gangjobs_sandbox.errors import StatusError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ABORT", "Fault", "FaultKind", "FaultMiddleware", "Faults", "manage_faults"]

ABORT = "sandbox.abort"
"""The ASGI extension of this server: a function that breaks the connection."""

HISTORY_MAX = 1000


class FaultKind(StrEnum):
    """The kinds of faults."""

    STATUS = "status"
    """The request is not executed, and answered with `code`."""
    STATUS_AFTER = "status-after"
    """The request is executed, and answered with `code`."""
    DROP_BEFORE = "drop-before"
    """The connection breaks before the request is executed."""
    DROP_AFTER = "drop-after"
    """The request is executed, and the connection breaks before the response, or after the first `chunks` pieces of the
    response."""
    DELAY = "delay"
    """The request is executed after `delay_s` seconds."""
    HALF_OPEN = "half-open"
    """The response stops after `chunks` pieces, and the connection stays open until the client closes it."""


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Fault:
    """A fault, the requests that it applies to, and how often. An empty condition matches every request."""

    kind: FaultKind
    method: str = ""
    path: str = ""
    """A regular expression that is searched in the path."""
    query: str = ""
    """A regular expression that is searched in the query, such as `watch=`."""
    times: int | None = 1
    """The number of requests that the fault applies to. None means all."""
    skip: int = 0
    """The number of matching requests before the first to which the fault applies."""
    code: int = 500
    retry_after_s: int | None = None
    message: str = "injected fault"
    delay_s: float = 0.0
    chunks: int = 0
    id: int = field(default_factory=count(1).__next__)

    def matches(self, method: str, path: str, query: str) -> bool:
        return (
            self.method in {"", method}
            and re.search(self.path, path) is not None
            and re.search(self.query, query) is not None
        )


class Faults:
    """The armed faults, and how often each was applied."""

    def __init__(self, *armed: Fault) -> None:
        self._armed: list[Fault] = list(armed)
        self.history: list[dict[str, Any]] = []

    def add(self, fault: Fault) -> Fault:
        """Arm a fault, and return it. Of several faults that match a request, the oldest applies."""
        self._armed.append(fault)
        return fault

    def remove(self, fault_id: int | None = None) -> None:
        """Disarm one fault, or all faults. Safe to repeat."""
        self._armed = [fault for fault in self._armed if fault_id is not None and fault.id != fault_id]

    def armed(self) -> tuple[Fault, ...]:
        return tuple(self._armed)

    def take(self, method: str, path: str, query: str) -> Fault | None:
        """Return the fault that applies to this request and count it as applied, or None."""
        for position, fault in enumerate(self._armed):
            if not fault.matches(method, path, query):
                continue
            if fault.skip:
                self._armed[position] = replace(fault, skip=fault.skip - 1)
                continue
            if fault.times is not None and fault.times <= 1:
                del self._armed[position]
            elif fault.times is not None:
                self._armed[position] = replace(fault, times=fault.times - 1)
            self.history.append({"fault": fault.id, "kind": fault.kind, "method": method, "path": path})
            del self.history[:-HISTORY_MAX]
            return fault
        return None


class FaultMiddleware:
    """Applies faults to the requests of an application, except for paths that start with `exempt_prefix`."""

    def __init__(self, app: ASGIApp, faults: Faults, *, exempt_prefix: str) -> None:
        self._app = app
        self._faults = faults
        self._exempt_prefix = exempt_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._fault_of(scope)
        if fault is None:
            await self._app(scope, receive, send)
            return
        match fault.kind:
            case FaultKind.DELAY:
                await asyncio.sleep(fault.delay_s)
                await self._app(scope, receive, send)
            case FaultKind.STATUS:
                await _refusal(fault)(scope, receive, send)
            case FaultKind.STATUS_AFTER:
                await self._app(scope, receive, _discard)
                await _refusal(fault)(scope, receive, send)
            case FaultKind.DROP_BEFORE:
                await _break(scope, receive)
            case FaultKind.DROP_AFTER:
                await self._cut(fault, scope, receive, send)
                await _break(scope, receive)
            case FaultKind.HALF_OPEN:
                await self._cut(fault, scope, receive, send)
                await _disconnected(receive)

    def _fault_of(self, scope: Scope) -> Fault | None:
        if scope["type"] != "http" or scope["path"].startswith(self._exempt_prefix):
            return None
        return self._faults.take(scope["method"], scope["path"], scope["query_string"].decode())

    async def _cut(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and send only the first pieces of its response."""
        left = fault.chunks
        cut = asyncio.Event()

        async def forward(message: Message) -> None:
            nonlocal left
            if message["type"] == "http.response.start":
                if fault.chunks or fault.kind is FaultKind.HALF_OPEN:
                    await send(message)
                return
            if left > 0 and message.get("more_body"):
                left -= 1
                await send(message)
                return
            cut.set()
            if message.get("more_body"):
                await asyncio.Event().wait()

        async def run() -> None:
            await self._app(scope, receive, forward)

        work = asyncio.create_task(run(), name="request-with-fault")
        waiting = asyncio.create_task(cut.wait(), name="cut")
        try:
            await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, waiting):
                task.cancel()
            await asyncio.gather(work, waiting, return_exceptions=True)


async def _discard(message: Message) -> None:
    """Discard the response of the application."""


def _refusal(fault: Fault) -> Response:
    reason = _REASONS.get(fault.code, "InternalError")
    return failure(StatusError(fault.code, reason, fault.message, retry_after_s=fault.retry_after_s))


async def _break(scope: Scope, receive: Receive) -> None:
    abort = (scope.get("extensions") or {}).get(ABORT)
    if abort is None:
        raise ConnectionAbortedError("injected fault: the connection breaks")
    abort()
    await _disconnected(receive)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def manage_faults(request: Request, faults: Faults) -> Response:
    """Answer a request that manages faults.

    `GET` lists the armed faults and the requests that they were applied to, `POST` arms a fault, and `DELETE` disarms
    the fault `?id=` or all faults.

    Raises:
        StatusError: 400, the body is not a fault; 405.
    """
    match request.method:
        case "GET":
            return json_response({"armed": [asdict(fault) for fault in faults.armed()], "history": faults.history})
        case "POST":
            try:
                wanted = await request.json()
                fault = Fault(**{**wanted, "kind": FaultKind(wanted["kind"])})
                re.compile(fault.path), re.compile(fault.query)
            except (ValueError, TypeError, KeyError, re.error) as exc:
                raise errors.bad_request(f"not a fault: {exc}") from exc
            return json_response(asdict(faults.add(fault)), 201)
        case "DELETE":
            text = request.query_params.get("id")
            faults.remove(int(text) if text else None)
            return json_response({"armed": [asdict(fault) for fault in faults.armed()]})
        case _:
            raise errors.method_not_allowed()
