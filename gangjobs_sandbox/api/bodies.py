"""Reads, decodes and checks request bodies and query parameters, and converts objects to the version of a request.

For the fields that the sandbox stores, the versions of a resource differ only in `apiVersion`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from gangjobs_sandbox import errors
from gangjobs_sandbox.api import protobuf
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry.patching import PatchKind
from gangjobs_sandbox.registry.schema import DecodingError, Schema
from gangjobs_sandbox.resources import by_kind
from gangjobs_sandbox.store import Object, objects_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.store import Object, Stored

__all__ = [
    "FieldValidation",
    "decoder",
    "encode",
    "flag",
    "integer",
    "is_dry_run",
    "options_error",
    "read_object",
    "read_patch",
    "to_version",
]


BODY_BYTES_MAX = 3 * 1024 * 1024
"""The API server's limit for a request body, in bytes."""
SUMMARY_BYTES_MAX = 30
"""The number of bytes of an unreadable body that the error message repeats."""
_FALSE = {"0", "false"}
_READERS: dict[str, Callable[[bytes], Any]] = {
    "": msgspec.json.decode,
    "application/json": msgspec.json.decode,
    "application/yaml": yaml.safe_load,
    protobuf.MEDIA_TYPE: protobuf.decode,
}
"""The decoder for each media type. A missing media type means JSON."""


def to_version(obj: Object, target: Target) -> Object:
    """Return the stored object in the API version that the request names."""
    return obj if obj.get("apiVersion") == target.api_version else {**obj, "apiVersion": target.api_version}


def encode(stored: Stored, target: Target) -> bytes:
    """Return the JSON of a stored object in the requested API version. Each version is encoded once."""
    if stored.obj.get("apiVersion") == target.api_version:
        return stored.json
    return stored.json_as(target.api_version, lambda obj: to_version(obj, target))


class FieldValidation(StrEnum):
    """The handling of fields that a kind does not have."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


def flag(query: Mapping[str, str], name: str) -> bool:
    """Parse a boolean parameter as the API server does: all values except `false` and `0` are true, even ""."""
    text = query.get(name)
    return text is not None and text.lower() not in _FALSE


def integer(query: Mapping[str, str], name: str) -> int | None:
    """Return an integer parameter, or None if it is missing.

    Raises:
        StatusError: 400, the value is not a number.
    """
    text = query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError as exc:
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from exc


def options_error(kind: str, cause: errors.Cause) -> StatusError:
    """Build the error 422 for a parameter of the request."""
    details = {"group": "meta.k8s.io", "kind": kind, "causes": [cause.to_dict()]}
    return StatusError(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: {cause}', details)


def is_dry_run(query: Any, kind: str) -> bool:
    """Return whether the request is a dry run."""
    wanted = query.getlist("dryRun")
    for value in wanted:
        if value != "All":
            raise options_error(kind, errors.not_supported("dryRun", wanted, ("All",)))
    return bool(wanted)


async def _body(request: Request) -> bytes:
    body = await request.body()
    if len(body) > BODY_BYTES_MAX:
        message = f"Request entity too large: limit is {BODY_BYTES_MAX}"
        raise StatusError(413, "RequestEntityTooLarge", message)
    return body


def _parsed(body: bytes, media: str, kind: str) -> Object:
    try:
        parsed = _READERS[media](body)
    except (msgspec.DecodeError, yaml.YAMLError, ValueError) as exc:
        raise _unrecognized(kind, str(exc), body) from exc
    if not isinstance(parsed, dict):
        raise _unrecognized(kind, "the body is not an object", body)
    return parsed


def _unrecognized(kind: str, problem: str, body: bytes) -> StatusError:
    summary = body[:SUMMARY_BYTES_MAX].decode(errors="replace") or "<empty>"
    return errors.bad_request(
        f"the object provided is unrecognized (must be of type {kind}): "
        f"couldn't get version/kind; json parse error: {problem} ({summary})"
    )


def _media(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_object(request: Request, kind: str, *, optional: bool = False) -> Object:
    """Decode the object of this kind in the body. An empty body gives an empty object if that is allowed.

    Raises:
        StatusError: 400, 413, 415.
    """
    media = _media(request)
    body = await _body(request)
    if optional and not body:
        return {}
    if media not in _READERS:
        raise errors.unsupported_media_type([known for known in _READERS if known])
    return _parsed(body, media, kind)


async def read_patch(request: Request) -> tuple[PatchKind, Any]:
    """Return the patch in the body and its type.

    Raises:
        StatusError: 400, 413, 415 (server-side apply is not supported).
    """
    media = _media(request)
    if media not in {kind.value for kind in PatchKind}:
        raise errors.unsupported_media_type([kind.value for kind in PatchKind])
    body = await _body(request)
    try:
        return PatchKind(media), msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise errors.bad_request("invalid JSON patch") from exc


def decoder(
    schema: Schema, target: Target, query: Mapping[str, str], warnings: list[str], *, is_patch: bool = False
) -> Callable[[Object], Object]:
    """Return the function that validates the object of this request, according to `fieldValidation`.

    The function takes the object in the request's version, or for a patch in the stored version, and returns the object
    in the stored version. It raises StatusError: 400, or 422 if the object comes from a patch.
    """
    mode = _field_validation(query)
    root = schema.root(target.resource, target.version, target.group)

    def decode(obj: Object) -> Object:
        sent = to_version(obj, target) if is_patch else obj
        if not is_patch:
            _check_kind(sent, target)
        if root is None:
            copied: Object = objects_copy(sent)
            return copied
        unknown: list[str] = []
        try:
            decoded = schema.decode(root, sent, unknown)
        except DecodingError as exc:
            raise _undecodable(sent, target, str(exc), is_patch=is_patch) from exc
        if unknown and mode is FieldValidation.STRICT:
            text = "strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in unknown)
            raise _undecodable(sent, target, text, is_patch=is_patch)
        if mode is FieldValidation.WARN:
            warnings.extend(f'unknown field "{path}"' for path in unknown)
        return decoded

    return decode


def _field_validation(query: Mapping[str, str]) -> FieldValidation:
    text = query.get("fieldValidation") or FieldValidation.WARN
    try:
        return FieldValidation(text)
    except ValueError:
        supported = ["", *sorted(FieldValidation)]
        raise options_error("CreateOptions", errors.not_supported("fieldValidation", text, supported)) from None


def _check_kind(obj: Object, target: Target) -> None:
    version, kind = obj.get("apiVersion"), obj.get("kind")
    wanted, sent = target.resource.kind, str(version or target.api_version)
    if (kind or wanted, sent) == (wanted, target.api_version):
        return
    group, _, short = sent.rpartition("/")
    if (kind or wanted, group) == (wanted, target.group) and target.resource.versions == ():
        raise errors.bad_request(
            f"the API version in the data ({sent}) does not match the expected API version ({target.api_version})"
        )
    if by_kind(sent, str(kind or wanted)) is None:
        why = f'no kind "{kind or wanted}" is registered for version "{sent}"'
    else:
        why = f"converting ({short}.{kind}) to ({target.group or 'core'}.{wanted}): unknown conversion"
    raise errors.bad_request(f'{kind or wanted} in version "{short}" cannot be handled as a {wanted}: {why}')


def _undecodable(obj: Object, target: Target, text: str, *, is_patch: bool) -> StatusError:
    if not is_patch:
        kind = target.resource.kind
        return errors.bad_request(f'{kind} in version "{target.version}" cannot be handled as a {kind}: {text}')
    cause = errors.invalid_value("patch", msgspec.json.encode(obj).decode(), text)
    return StatusError(422, "Invalid", f' "" is invalid: {cause}', {"causes": [cause.to_dict()]})
