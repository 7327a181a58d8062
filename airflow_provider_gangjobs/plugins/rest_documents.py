"""The bodies of requests and responses of the REST interface, and its errors as problem details (RFC 9457).

Bodies consist of the values that the hook returns. A problem has a status, a sentence, and what to do. `code` is the
name of the exception that the hook raises for the same error, or names the HTTP status. What a connection has, such as
addresses and paths, is in no problem: errors of the connection to a cluster are described by `describe_error`, as on
the pages. The log of the API server has the whole error.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from msgspec import Struct
from starlette.exceptions import HTTPException

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import (
    ERROR_OF_STATUS,
    ApiError,
    BadRequest,
    ClusterError,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    TransportError,
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
from airflow_provider_gangjobs.gang.identity import parse_default_submission_id
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.outcome.task_result import partial_results
from airflow_provider_gangjobs.gang.render.user_manifest import requested_namespace
from airflow_provider_gangjobs.gang.spec import RESULTS_LIMIT_BYTES, GangPolicy, GangSpec, RoleSpec
from airflow_provider_gangjobs.gang.validation.validate import read_spec, require_valid
from airflow_provider_gangjobs.gang.view import GangView  # noqa: TC001 - msgspec reads annotations
from airflow_provider_gangjobs.kube.views import JSON_ERRORS
from airflow_provider_gangjobs.plugins.caches import describe_error
from airflow_provider_gangjobs.submission.submission import Submission
from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog  # noqa: TC001 - msgspec reads annotations

if TYPE_CHECKING:
    from fastapi import Request

    from airflow_provider_gangjobs.gang.view import GangSnapshot


NOT_IN_ADDRESSES: Final = frozenset({"", ".", ".."})
"""The parts of a path that clients and proxies remove."""


class GangAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The view of a gang, and what its ranks have written."""

    gang: GangView
    logs: tuple[RankLog, ...] = ()
    results: dict[str, Any] | None = None
    """Of a submission: the result of each rank that succeeded and wrote one. Absent if all together have more than
    1 MiB, or if not all outcomes of ranks that succeeded were read."""


class SubmissionList(Struct, frozen=True, rename={"continue_": "continue"}):
    """A page of the submissions of a namespace, with one item for each attempt."""

    items: tuple[GangView, ...]
    continue_: str | None
    """The token of the next page; `null` on the last page."""


class NewSubmission(Struct, frozen=True):
    """A submission whose id is not in the address."""

    submission_id: str
    spec: dict[str, Any]


class NewUpload(Struct, frozen=True):
    """Files that several submissions share."""

    files: dict[str, Any]


class StoredUpload(Struct, frozen=True):
    """The content id of an upload, for the parameter `uploads` of a spec."""

    content_id: str


class BinaryFile(Struct, frozen=True):
    """The content of a file that is not text, in base64 (RFC 4648)."""

    base64: str


_IN_JSON: Final[dict[str, Any]] = {
    "files": Mapping[str, str | BinaryFile],
    "gang": GangPolicy,
    "roles": Mapping[str, RoleSpec] | None,
}
"""The parameters of a spec whose types in JSON are narrower."""


def _field_in_json(field: msgspec.structs.FieldInfo) -> tuple[str, Any, Any]:
    default = field.default if field.default is not msgspec.NODEFAULT else {}
    return field.name, _IN_JSON.get(field.name, field.type), default


SpecDocument: Final = msgspec.defstruct("GangSpec", map(_field_in_json, msgspec.structs.fields(GangSpec)), kw_only=True)
"""The schema of a spec in the body of a request."""


RESPONSES: Final = (Submission, GangAnswer, SubmissionList, StoredUpload)
REQUESTS: Final = (SpecDocument, NewSubmission, NewUpload)


def decode(body: bytes, kind: type[Any]) -> Any:
    """Return the body of a request.

    Raises:
        InvalidGangSpec: the body is not JSON, or has another structure.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_ERRORS as error:
        raise InvalidGangSpec((Problem("body", f"cannot be read: {error}", "Send one JSON object"),)) from error


def spec_in(document: Mapping[str, Any], namespace: str) -> GangSpec:
    """Return the spec in the body of a request. A binary file is written as `{"base64": "..."}`.

    Raises:
        InvalidGangSpec: the error has all problems of the spec.
    """
    problems: list[Problem] = []
    if isinstance(document.get("files"), Mapping):
        document = {**document, "files": files_in(document["files"], problems)}
    try:
        spec = read_spec(document)
    except InvalidGangSpec as error:
        problems += error.problems
        spec = read_spec({name: value for name, value in document.items() if name in GangSpec.__struct_fields__})
    try:
        require_valid(spec)
        given = requested_namespace(spec)
    except InvalidGangSpec as error:
        raise InvalidGangSpec((*problems, *error.problems)) from None
    except RecursionError:
        raise InvalidGangSpec((Problem("body", "is nested too deeply", "Correct it"),)) from None
    if given not in {None, namespace}:
        problems.append(Problem("namespace", f"is {given!r:.80}", f"The address names {namespace!r}: leave it out"))
    if problems:
        raise InvalidGangSpec(tuple(problems))
    return msgspec.structs.replace(spec, namespace=namespace)


def files_in(files: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the files with decoded contents, and add the problems of those that cannot be decoded."""
    found = {}
    for name, content in files.items():
        match content:
            case {"base64": str(text), **others} if not others:
                try:
                    found[name] = base64.b64decode(text, validate=True)
                except (binascii.Error, ValueError):
                    problems.append(Problem(f"files.{name}.base64", "is not base64 (RFC 4648)", "Correct it"))
            case _:
                found[name] = content
    return found


def problem_with_address(submission_id: str) -> Problem | None:
    """Return why an id cannot be a part of an address."""
    if not NOT_IN_ADDRESSES & set(submission_id.split("/")):
        return None
    remedy = "Programs shorten an address with such a part. Choose another id"
    return Problem("submission_id", f"{submission_id!r:.80} has a part that is empty, '.' or '..'", remedy)


def is_of_client(gang: GangView) -> bool:
    """Return whether the submission has an id that a client chose, and is not the gang of a task."""
    return bool(gang.submission_id) and parse_default_submission_id(gang.submission_id) is None


def results_of(snapshot: GangSnapshot) -> dict[str, Any] | None:
    """Return the results of ranks; `None` if they are too large, or not all known."""
    outcomes = snapshot.known_outcomes or ()
    succeeded = sum(one.status.succeeded for one in snapshot.gang.jobs_with_pods or (snapshot.gang.view,))
    size = sum(len(outcome.message) for outcome in outcomes if outcome.result is not None)
    known = sum(outcome.outcome is OutcomeKind.SUCCEEDED for outcome in outcomes)
    if known < succeeded or size > RESULTS_LIMIT_BYTES:
        return None
    return {str(rank): result for rank, result in partial_results(outcomes).items()}


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
    described = describe_error(error, conn_id, namespace)
    match error:
        case HTTPException():
            return _problem(error.status_code, str(error.detail))
        case RequestValidationError():
            errors = tuple(Problem(".".join(map(str, one["loc"])), str(one["msg"])) for one in error.errors())
            return _problem(422, "The parameters of the request are invalid.", errors=errors)
        case InvalidGangSpec():
            return _problem(422, f"{error.what}.", error, errors=error.shown_problems)
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
        case AirflowNotFoundException():
            return _problem(404, described, error)
        case TransportError() | TooManyRequests():
            return _problem(503, described, error, remedy=REPEAT)
        case ClusterError():
            return _problem(_STATUS.get(type(error), 502), described, error)
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


def _problem(status: int, detail: str, error: Exception | None = None, **more: Any) -> ProblemDetails:
    code = _CODES.get(status, f"Status{status}") if error is None else type(error).__name__
    return ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=detail.strip(), code=code, **more)


# The names of statuses differ between releases of Python. Those of the errors of a cluster are never renamed.
_CODES: Final = {status: kind.__name__ for status, kind in ERROR_OF_STATUS.items()} | {
    408: "RequestTimeout",
    415: "UnsupportedMediaType",
    500: "InternalError",
    503: "Unavailable",
}
