"""Applies a patch of one of the three supported types to an object."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import jsonpatch

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import strategic_merge

if TYPE_CHECKING:
    from gangjobs_sandbox.resources import Resource
    from gangjobs_sandbox.store import Object

__all__ = ["PatchKind", "patched"]

OPERATIONS_MAX = 10_000
"""The API server's limit for one JSON patch."""


class PatchKind(StrEnum):
    """The type of a patch, by its content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


def patched(resource: Resource, current: Object, patch: Any, kind: PatchKind) -> Object:
    """Return the patched object. The current object is not changed.

    Raises:
        StatusError: 400 if the patch is malformed, 422 if it cannot be applied to this object.
    """
    if kind is PatchKind.JSON:
        return _json_patched(resource, current, patch)
    if not isinstance(patch, dict):
        raise errors.bad_request(f"error decoding patch: a {kind.name.lower()} patch must be an object")
    if kind is PatchKind.MERGE:
        merged: Object = strategic_merge.json_merge(current, patch)
        return merged
    try:
        return strategic_merge.apply(current, patch, resource.kind)
    except ValueError as exc:
        raise errors.bad_request(str(exc)) from exc


def _json_patched(resource: Resource, current: Object, patch: Any) -> Object:
    if not isinstance(patch, list):
        raise errors.bad_request("error decoding patch: json: cannot unmarshal the patch into a list of operations")
    if len(patch) > OPERATIONS_MAX:
        detail = f"The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {len(patch)}"
        raise errors.StatusError(413, "RequestEntityTooLarge", detail)
    try:
        result: Object = jsonpatch.apply_patch(current, patch)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as exc:
        message = "the server rejected our request due to an error in our request"
        raise errors.StatusError(422, "Invalid", message, {}) from exc
    return result
