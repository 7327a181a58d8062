"""Converts stored objects to the API version of a request.

For the fields that the sandbox stores, the versions of a resource differ only in `apiVersion`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.store import Object, Stored

__all__ = ["encode", "to_version"]


def to_version(obj: Object, target: Target) -> Object:
    """Return the stored object in the API version that the request names."""
    return obj if obj.get("apiVersion") == target.api_version else {**obj, "apiVersion": target.api_version}


def encode(stored: Stored, target: Target) -> bytes:
    """Return the JSON of a stored object in the requested API version. Each version is encoded once."""
    if stored.obj.get("apiVersion") == target.api_version:
        return stored.json
    return stored.json_as(target.api_version, lambda obj: to_version(obj, target))
