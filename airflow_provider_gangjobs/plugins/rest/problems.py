"""Errors of the REST interface as problem details (RFC 9457): a status, a sentence, and what to do.

`code` is the name of the exception that the hook raises for the same error, or names the HTTP status. What a connection
has, such as addresses and paths, is in no problem: errors of the connection to a cluster are described by
`describe_error`, as on the pages. The log of the API server has the whole error.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    BadRequest,
    ClusterError,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    TransportError,
    Unauthorized,
)
from airflow_provider_gangjobs.exceptions import (
    GangJobError,
    GangUnsupported,
    InvalidGangSpec,
    JobDeleted,
    PreviousAttemptRunning,
    Problem,
    SubmissionConflict,
    SubmissionFailed,
)
from airflow_provider_gangjobs.plugins.snapshot_cache import describe_error

if TYPE_CHECKING:
    from fastapi import Request

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 5
REPEAT: Final = "Send the same request again: it continues where this one stopped"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error. The `type` is always `about:blank`, so it is left out."""

    title: str
    """The name of the HTTP status."""
    status: int
    detail: str
    """What happened, in one sentence or more."""
    code: str
    """The kind of the error, which is never renamed."""
    remedy: str = ""
    """What to do."""
    errors: tuple[Problem, ...] = ()
    """Each mistake of the request, with its place."""
    fields: tuple[str, ...] = ()
    """The parameters by which a submission differs from the one that exists."""


def respond(document: Any, status: int = 200, *, media_type: str = "application/json", **headers: str) -> Response:
    """Return a response with a document. Names of headers have underscores here."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(msgspec.json.encode(document), status, {**HEADERS, **named}, media_type)


def respond_with_error(request: Request, error: Exception) -> Response:
    """Return the problem details of an error that a route has raised."""
    names = request.path_params
    details = _details(error, names.get("connection_id"), names.get("namespace", ""))
    headers = dict(getattr(error, "headers", None) or {})
    if details.status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if not isinstance(error, (HTTPException, RequestValidationError, InvalidGangSpec, SubmissionConflict)):
        log.warning("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return respond(details, details.status, media_type=MEDIA_TYPE, **headers)


def _details(error: Exception, conn_id: str | None, namespace: str) -> ProblemDetails:
    match error:
        case HTTPException():
            return _problem(error.status_code, str(error.detail))
        case RequestValidationError():
            errors = tuple(Problem(".".join(map(str, one["loc"])), str(one["msg"])) for one in error.errors())
            return _problem(422, "The parameters of the request are invalid.", errors=errors)
        case InvalidGangSpec():
            return _problem(422, f"{error.what}.", error, errors=error.problems)
        case SubmissionConflict():
            return _problem(409, error.what, error, remedy=error.remedy, fields=error.fields)
        case GangUnsupported():
            return _problem(422, f"{error.what}. {error.evidence}", error, remedy=error.remedy)
        case PreviousAttemptRunning():
            return _problem(503, f"{error.what}. {error.evidence}", error, remedy=f"{REPEAT}. {error.remedy}")
        case JobDeleted():
            return _problem(503, f"{error.what}. {error.evidence}", error, remedy=REPEAT)
        case SubmissionFailed():
            return _failed(error, conn_id, namespace)
        case GangJobError():
            return _problem(500, f"{error.what}. {error.evidence}", error, remedy=error.remedy)
        case ClusterError() | AirflowNotFoundException():
            return _of_cluster(error, describe_error(error, conn_id, namespace))
        case TimeoutError():
            return _problem(504, "The cluster did not answer in time.", error, remedy=REPEAT)
    return _problem(500, "The log of Airflow's API server has the error.")


def _failed(error: SubmissionFailed, conn_id: str | None, namespace: str) -> ProblemDetails:
    cause = error.__cause__
    remedy = error.advice or (REPEAT if error.retryable else error.remedy)
    if isinstance(cause, ClusterError) and not isinstance(cause, ApiError):
        detail = f"{error.what}. {describe_error(cause, conn_id, namespace)}"
    else:
        detail = f"{error.what}. {error.evidence}"
    status = 503 if error.retryable else _STATUS.get(type(cause), 502)
    return _problem(status, detail, error, remedy=remedy)


# The status of an answer if the API server of the cluster has refused a request for good.
_STATUS: Final[dict[type[Any], int]] = {Forbidden: 403, NotFound: 404, BadRequest: 422, Invalid: 422, Gone: 410}


def _of_cluster(error: Exception, detail: str) -> ProblemDetails:
    if isinstance(error, Gone):
        return _problem(410, "The page token has expired.", error, remedy="Start again with the first page")
    if isinstance(error, AirflowNotFoundException):
        return _problem(404, detail, error)
    if isinstance(error, (TransportError, TooManyRequests)):
        return _problem(503, detail, error, remedy=REPEAT)
    status = 502 if isinstance(error, Unauthorized) else _STATUS.get(type(error), 502)
    return _problem(status, detail, error)


def _problem(status: int, detail: str, error: Exception | None = None, **more: Any) -> ProblemDetails:
    code = _CODES.get(status, f"Status{status}") if error is None else type(error).__name__
    return ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=detail.strip(), code=code, **more)


# The names of statuses differ between releases of Python.
_CODES: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    410: "Gone",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "Unavailable",
}
