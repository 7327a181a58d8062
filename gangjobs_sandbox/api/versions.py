"""Objects as seen through one API version; storage has only one form of each.

The two versions of the Workload API in 1.37 differ in nothing that the sandbox keeps. Events have two
forms with other field names: `v1` is stored, `events.k8s.io/v1` is converted on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.api.routing import EVENTS_GROUP, Target

if TYPE_CHECKING:
    from gangjobs_sandbox.store import Object, Stored

__all__ = ["encode", "from_version", "to_version"]

_CORE_TO_EVENTS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_EVENTS_TO_CORE = {new: old for old, new in _CORE_TO_EVENTS.items()}


def to_version(obj: Object, target: Target) -> Object:
    """The stored object in the version that the request names."""
    if target.group == EVENTS_GROUP:
        obj = {_CORE_TO_EVENTS.get(field, field): value for field, value in obj.items()}
    return obj if obj.get("apiVersion") == target.api_version else {**obj, "apiVersion": target.api_version}


def from_version(obj: Object, target: Target) -> Object:
    """The object of a request in its stored form, but for the apiVersion."""
    if target.group != EVENTS_GROUP:
        return obj
    return {_EVENTS_TO_CORE.get(field, field): value for field, value in obj.items()}


def encode(stored: Stored, target: Target) -> bytes:
    """JSON of a stored object in the version that the request names, made once per version."""
    if stored.obj.get("apiVersion") == target.api_version:
        return stored.json
    return stored.json_as(target.api_version, lambda obj: to_version(obj, target))
