"""Errors of requests to an API server. No exception of another library leaves this package.

    ClusterError
    ├── InvalidConnection        the connection or kubeconfig is not usable
    ├── CredentialsFailed        the exec plugin or the token file failed to return a token
    ├── TransportError
    │   ├── Unreachable          the request was never sent
    │   │   └── TlsFailed        the TLS handshake failed
    │   └── ReplyLost            the request was sent, but no complete response arrived
    └── ApiError                 the server refused the request
        ├── BadRequest           400
        ├── Unauthorized         401
        ├── Forbidden            403
        ├── NotFound             404
        ├── MethodNotAllowed     405
        ├── AlreadyExists        409, reason AlreadyExists
        ├── Conflict             409, any other reason
        ├── Gone                 410
        ├── TooLarge             413
        ├── Invalid              422
        ├── TooManyRequests      429: the request was not processed
        ├── ServerError          5xx
        └── UnexpectedReply      not a response of an API server, such as a proxy's login page

A request has three possible outcomes: it succeeded, it failed, or it failed and may have been applied
(`may_have_applied`).
"""

# ruff: noqa: N818 - the names are reasons of the API (NotFound, Conflict, Gone), which users know

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final, TypeVar

from airflow_provider_gangjobs.kube.text import to_printable, to_printable_value

T = TypeVar("T")

MESSAGE_CHARACTERS_MAX = 256
"""Longer messages of a server are cut, because a server may quote whole objects."""
RETRY_AFTER_MAX_S = 60.0
"""A longer Retry-After of a server is cut to this, because gangs wait for the response. The limit applies to retries of
the client, informers, the harvest, and submissions."""


class ClusterError(Exception):
    """Base class of all errors of requests to a cluster."""

    transient: bool = False
    """True if the same request may succeed later without a change by anyone."""
    may_have_applied: bool = False
    """True if a write may have taken effect although it failed."""
    retry_after_s: float | None = None
    """The Retry-After of the server in seconds, at most `RETRY_AFTER_MAX_S`."""

    def __str__(self) -> str:
        return to_printable(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[ClusterError], args: tuple[Any, ...], fields: dict[str, Any]) -> ClusterError:
    """Unpickle an error from its fields. `args` holds the message, which the constructor does not accept."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class InvalidConnection(ClusterError):
    """The connection's extras or its kubeconfig cannot be used."""

    def __init__(self, conn_id: str, problem: str, remedy: str) -> None:
        self.conn_id = conn_id
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"Kubernetes connection {conn_id!r}: {problem}. {remedy}")


class CredentialsFailed(ClusterError):
    """An exec plugin or the token file failed to return a token. No request was sent."""

    transient = True

    def __init__(self, conn_id: str, evidence: str) -> None:
        self.conn_id = conn_id
        self.evidence = evidence
        super().__init__(f"Kubernetes connection {conn_id!r}: no credentials: {evidence}")


class TransportError(ClusterError):
    """No complete response arrived from the server."""

    transient = True
    _summary: ClassVar[str] = "no response"

    def __init__(self, request: str, evidence: str) -> None:
        self.request = request
        self.evidence = evidence
        super().__init__(f"{request}: {self._summary}: {evidence}"[: MESSAGE_CHARACTERS_MAX * 2])


class Unreachable(TransportError):
    """The request was never sent: connection refused, no route, unknown host, or connect timeout."""

    _summary = "the API server cannot be reached"


class TlsFailed(Unreachable):
    """The TLS handshake failed, for example because the server is not trusted. A retry does not help."""

    transient = False
    _summary = "the TLS connection was not trusted (check the CA, the server's name, and the client certificate)"


class ReplyLost(TransportError):
    """The request was sent, but no complete response arrived. A write may have been applied, so read the object."""

    may_have_applied = True
    _summary = "the response was lost, the request may have been applied"


class ApiError(ClusterError):
    """The server refused the request. `reason` is the machine-readable reason of its Status, or empty."""

    def __init__(
        self,
        status: int,
        *,
        request: str,
        reason: str = "",
        message: str = "",
        details: Mapping[str, Any] | None = None,
        continue_token: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.request = request
        self.reason = reason
        self.message = message[:MESSAGE_CHARACTERS_MAX]
        self.details: Mapping[str, Any] = details or {}
        self.continue_token = continue_token
        self.retry_after_s = None if retry_after_s is None else min(retry_after_s, RETRY_AFTER_MAX_S)
        super().__init__(": ".join(part for part in (request, f"{status} {reason}".rstrip(), self.message) if part))

    @property
    def not_processed(self) -> bool:
        """True if the server says that it did not process the request, so that even a write can be retried."""
        return False

    def causes(self) -> tuple[str, ...]:
        """Return the reasons of the causes in the Status, such as `ResourceVersionTooLarge` or `FieldValueInvalid`."""
        return tuple(str(cause.get("reason", "")) for cause in causes_in(self.details))


class BadRequest(ApiError):
    """The request is malformed, for example an unknown field under strict validation."""


class Unauthorized(ApiError):
    """The server did not accept the credentials, even after a renewal."""


class Forbidden(ApiError):
    """RBAC, a quota, or an admission plugin refused the request."""


class NotFound(ApiError):
    """The object or the resource does not exist."""


class MethodNotAllowed(ApiError):
    """The server serves the resource, but not this verb."""


class AlreadyExists(ApiError):
    """An object of this name exists already."""


class Conflict(ApiError):
    """A precondition (uid, resourceVersion) does not hold, or too many wrote at once. See `is_of_another_uid`."""


class Gone(ApiError):
    """The resourceVersion or continue token is too old. List again."""


class TooLarge(ApiError):
    """The body exceeds the limit of the server."""


class Invalid(ApiError):
    """The object failed validation. `details['causes']` names the fields."""


class TooManyRequests(ApiError):
    """Priority and fairness or a disruption budget refused the request before processing."""

    transient = True

    @property
    def not_processed(self) -> bool:
        return True


class ServerError(ApiError):
    """The server or a proxy before it failed. A write may have been applied."""

    transient = True

    @property
    def not_processed(self) -> bool:
        """Whether the server refused before processing: it is overloaded or starting, and says when to retry."""
        return self.status == 503 and self.retry_after_s is not None

    @property
    def may_have_applied(self) -> bool:  # type: ignore[override]
        """True unless the server refused before processing."""
        return not self.not_processed


def is_webhook_unavailable(error: ClusterError) -> bool:
    """Return whether the server could not call a webhook for admission or conversion, and so did not apply the request.

    A controller with webhooks, such as Kueue, may be restarted or updated at any time.
    """
    return isinstance(error, ServerError) and any(text in error.message for text in _WEBHOOK_FAILED)


_WEBHOOK_FAILED: Final = ("failed calling webhook", "conversion webhook for")


class UnexpectedReply(ApiError):
    """The response is not from a Kubernetes API server, or does not have the requested content."""

    may_have_applied = True


ERROR_OF_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: Invalid,
    429: TooManyRequests,
}
_BY_REASON: Mapping[str, type[ApiError]] = {"AlreadyExists": AlreadyExists, "Expired": Gone}


def error_from_reply(
    status: int, body: bytes | memoryview, *, request: str, retry_after: str | None = None
) -> ApiError:
    """Return the error for a response with status 300 or more. Only a body of kind Status is quoted."""
    parsed = _parse_status(body)
    seconds = parse_retry_after(retry_after)
    if parsed is None:
        kind = _class_for(status, "")
        if kind is ApiError or (kind is NotFound and not _is_not_served(body, request)):
            kind = UnexpectedReply
        message = "the response is not from an API server" if kind is UnexpectedReply else ""
        return kind(status, request=request, message=message, retry_after_s=seconds)
    reason = _field(parsed, "reason", "")
    details: Mapping[str, Any] = _field(parsed, "details", {})
    return _class_for(status, reason)(
        status,
        request=request,
        reason=reason,
        message=_field(parsed, "message", ""),
        details=details,
        continue_token=_field(_field(parsed, "metadata", {}), "continue", "") or None,
        retry_after_s=_number(details.get("retryAfterSeconds")) if seconds is None else seconds,
    )


def error_from_watch_event(status_object: bytes | memoryview, *, request: str) -> ApiError:
    """Return the error for a watch event of type ERROR, whose object is a Status."""
    code = _number((_parse_status(status_object) or {}).get("code")) or 0
    return error_from_reply(int(code) if 0 < code < 1000 else 500, status_object, request=request)


def is_of_another_uid(error: ClusterError) -> bool:
    """Whether a write was refused because the object of that name has another uid than the request names.

    A patch gets 422 for the field `metadata.uid`, which never changes. A delete and a PUT get 409, and the message
    names the precondition. The reason, Conflict, is also that of a stale resourceVersion and of too many writers at
    once, which say nothing about the uid. So False does not prove that the uid is the same.
    """
    if isinstance(error, Invalid):
        return any(cause.get("field") == "metadata.uid" for cause in causes_in(error.details))
    return isinstance(error, Conflict) and _UID_PRECONDITION.search(error.message) is not None


def causes_in(details: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the causes in the details of a Status that are objects. A proxy or a webhook may send anything."""
    causes = details.get("causes")
    return [cause for cause in causes if isinstance(cause, Mapping)] if isinstance(causes, list) else []


_UID_PRECONDITION = re.compile(r"UID in (?:the )?precondition")


def parse_retry_after(header: str | None, *, now: datetime | None = None) -> float | None:
    """Return the seconds to wait from a number or an HTTP date, or None if the header is missing or malformed."""
    if not header:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _parse_status(body: bytes | memoryview) -> dict[str, Any] | None:
    try:
        parsed = to_printable_value(json.loads(bytes(body).decode(errors="replace")))
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("kind") == "Status" else None


def _field(parsed: Mapping[str, Any], name: str, default: T) -> T:
    """Return a field, or `default` if the field has another type: a proxy may send anything, and one wrong field does
    not make the others wrong."""
    value = parsed.get(name)
    return value if isinstance(value, type(default)) else default


_ALWAYS_SERVED: Final = re.compile(r"\S+ /(api/v1|apis/batch/v1)/")
_NOT_SERVED: Final = re.compile(rb'\s*(404 page not found|\{\s*"paths")')


def _is_not_served(body: bytes | memoryview, request: str) -> bool:
    """Whether a 404 without a Status says that the API server does not serve the path, in Go's words or by its list of
    paths. Otherwise a proxy has answered, and the object may exist."""
    return _NOT_SERVED.match(body) is not None and _ALWAYS_SERVED.match(request) is None


def _class_for(status: int, reason: str) -> type[ApiError]:
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    if status in ERROR_OF_STATUS:
        return ERROR_OF_STATUS[status]
    return ServerError if status >= 500 else ApiError


def _number(value: object) -> float | None:
    """Return a positive number, which may be given as text."""
    try:
        number = float(str(value)) if isinstance(value, str | int | float) else 0.0
    except ValueError:
        return None
    return number if number > 0 else None
