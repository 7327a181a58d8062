"""Immutable versions of objects, and the changes between them.

A new version is a new dict. Lists, watches and snapshots therefore share versions, and each version is encoded to JSON
at most once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangjobs_sandbox.resources import Resource

__all__ = ["Event", "EventType", "Key", "Object", "Stored", "key_of", "objects_copy"]

Object = dict[str, Any]
Key = tuple[str, str]
"""The namespace ("" for a cluster-scoped object) and the name."""


class EventType(StrEnum):
    """The type of a change, as in a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Stored:
    """One version of one object, and its JSON."""

    __slots__ = ("_encoded", "obj", "revision")

    def __init__(self, obj: Object, revision: int) -> None:
        self.obj = obj
        self.revision = revision
        self._encoded: dict[str, bytes] = {}

    @property
    def json(self) -> bytes:
        """The object as JSON. The object is encoded once."""
        return self.json_as("", lambda obj: obj)

    def json_as(self, view: str, convert: Callable[[Object], Object]) -> bytes:
        """Return the JSON of the object in one API version. The object is encoded once for each version."""
        encoded = self._encoded.get(view)
        if encoded is None:
            encoded = self._encoded[view] = msgspec.json.encode(convert(self.obj))
        return encoded

    @property
    def labels(self) -> dict[str, str]:
        return self.obj["metadata"].get("labels") or {}


@dataclass(frozen=True, slots=True)
class Event:
    """One change of an object. For DELETED, `obj` is the last version, under the revision of the removal."""

    type: EventType
    resource: Resource
    stored: Stored
    old_stored: Stored | None

    @property
    def obj(self) -> Object:
        return self.stored.obj

    @property
    def old(self) -> Object | None:
        return self.old_stored.obj if self.old_stored else None

    @property
    def revision(self) -> int:
        return self.stored.revision


def objects_copy(value: Any) -> Any:
    """Return a deep copy of a JSON value. The copy is several times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {name: objects_copy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [objects_copy(item) for item in value]
    return value


def key_of(obj: Object) -> Key:
    """Return the key of the object in the store."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
