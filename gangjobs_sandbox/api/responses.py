"""HTTP responses: JSON with the status codes of the API server, `Status` objects, and warnings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangjobs_sandbox.errors import StatusError

__all__ = ["failure", "json_response", "ok", "success"]

WARNING_CHARACTERS_MAX = 4096
"""The maximum total length of the warnings in one response. Further warnings are omitted, as by the API server."""


def json_response(
    value: Any, status_code: int = 200, *, headers: Mapping[str, str] | None = None, warnings: Iterable[str] = ()
) -> Response:
    """Build a JSON response. Bytes are sent as they are."""
    content = value if isinstance(value, bytes) else msgspec.json.encode(value)
    response = Response(content, status_code, headers, media_type="application/json")
    response.headers["Cache-Control"] = "no-cache, private"
    room = WARNING_CHARACTERS_MAX
    for text in dict.fromkeys(warnings):
        room -= len(text)
        if room < 0:
            break
        response.headers.append("Warning", f"299 - {_quoted(text)}")
    return response


def _quoted(text: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return '"' + re.sub(r"[^\x20-\x7e]", "?", escaped) + '"'


def failure(error: StatusError) -> Response:
    """Build the response to a refused request."""
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s is not None else None
    response = json_response(error.to_status(), error.code, headers=headers)
    if error.code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def success(code: int = 200, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build a `Status` response for a successful request."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = dict(details)
    return status | ({"code": code} if code != 200 else {})


def ok() -> Response:
    return Response("ok", media_type="text/plain")
