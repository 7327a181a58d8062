"""The errors of the API server: one exception with the code, reason, message and details of a `Status`.

The texts follow `k8s.io/apimachinery/pkg/api/errors` and `.../util/validation/field`, because clients and users match
them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangjobs_sandbox.resources import Resource

__all__ = [
    "Cause",
    "StatusError",
    "already_exists",
    "bad_request",
    "conflict",
    "duplicate",
    "expired",
    "forbidden",
    "forbidden_field",
    "immutable",
    "invalid",
    "invalid_value",
    "method_not_allowed",
    "not_found",
    "not_supported",
    "required",
    "too_large_resource_version",
    "unauthorized",
    "unsupported_media_type",
]


@dataclass(frozen=True)
class Cause:
    """The reason why the API server rejects one field."""

    reason: str
    field: str
    message: str
    """The message without the name of the field."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}


def _quoted(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def invalid_value(field: str, value: Any, detail: str) -> Cause:
    return Cause("FieldValueInvalid", field, f"Invalid value: {_quoted(value)}: {detail}")


def immutable(field: str, value: Any) -> Cause:
    return invalid_value(field, value, "field is immutable")


def required(field: str, detail: str = "") -> Cause:
    return Cause("FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value")


def not_supported(field: str, value: Any, supported: Sequence[str]) -> Cause:
    choices = ", ".join(_quoted(choice) for choice in supported)
    return Cause("FieldValueNotSupported", field, f"Unsupported value: {_quoted(value)}: supported values: {choices}")


def duplicate(field: str, value: Any) -> Cause:
    return Cause("FieldValueDuplicate", field, f"Duplicate value: {_quoted(value)}")


def forbidden_field(field: str, detail: str) -> Cause:
    return Cause("FieldValueForbidden", field, f"Forbidden: {detail}")


class StatusError(Exception):
    """The API server refuses a request.

    Args:
        code: the HTTP status code.
        reason: the reason for programs, such as `NotFound`. An empty reason is omitted from the `Status`.
        message: the message for people.
        details: the `details` of the `Status`, such as the name of the object and the causes. None omits the field.
        retry_after_s: the time in seconds after which the client may retry. It is also set in `details`.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        *,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self._has_details = details is not None or retry_after_s is not None
        self.retry_after_s = retry_after_s
        if retry_after_s is not None:
            self.details["retryAfterSeconds"] = retry_after_s

    def to_status(self) -> dict[str, Any]:
        """Return the `Status` object of the response."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        }
        if self.reason:
            status["reason"] = self.reason
        if self._has_details:
            status["details"] = self.details
        return status


def _details(resource: Resource, name: str, *, kind: str | None = None) -> dict[str, Any]:
    details = {"name": name, "group": resource.group, "kind": kind or resource.plural}
    return {key: value for key, value in details.items() if value}


def not_found(resource: Resource, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{resource.key} "{name}" not found', _details(resource, name))


def already_exists(resource: Resource, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{resource.key} "{name}" already exists', _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {resource.key} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, name))


def invalid(resource: Resource, name: str, causes: Iterable[Cause], *, as_resource: bool = False) -> StatusError:
    """Build the error 422: the object breaks the rules of its kind (or of its resource). The error lists all causes."""
    found = list(dict.fromkeys(causes))
    text = str(found[0]) if len(found) == 1 else "[" + ", ".join(str(cause) for cause in found) + "]"
    kind = resource.plural if as_resource else resource.kind
    subject = resource.key if as_resource else resource.qualified_kind
    details = _details(resource, name, kind=kind) | {"causes": [cause.to_dict() for cause in found]}
    return StatusError(422, "Invalid", f'{subject} "{name}" is invalid: {text}', details)


def forbidden(resource: Resource, name: str, why: str, causes: Iterable[Cause] = ()) -> StatusError:
    details = _details(resource, name)
    if listed := [cause.to_dict() for cause in causes]:
        details["causes"] = listed
    subject = f'{resource.key} "{name}"' if name else resource.key
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {why}", details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)


def expired(message: str) -> StatusError:
    """Build the error 410: the history no longer contains the requested version. The client has to list again."""
    return StatusError(410, "Expired", message)


def too_large_resource_version(wanted: int, current: int) -> StatusError:
    """Build the error 504: the client requests a version that this server has not reached."""
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return StatusError(504, "Timeout", message, {"causes": [cause]}, retry_after_s=1)
