"""The owner graph, kept up to date by events: all objects by uid, and the dependents of each uid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.meta import (
    Obj,
    finalizers_of,
    is_deleting,
    name_of,
    namespace_of,
    owners_of,
    uid_of,
)
from gangjobs_sandbox.registry.metadata import FOREGROUND
from gangjobs_sandbox.resources import Resource, by_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Entry:
    """One object of the owner graph."""

    resource: Resource
    obj: Obj

    @property
    def is_deleting_dependents(self) -> bool:
        """Return whether the object is in foreground deletion and waits for its dependents."""
        return is_deleting(self.obj) and FOREGROUND in finalizers_of(self.obj)


@dataclass(frozen=True)
class Owners:
    """The owner references of an object, by the state of the owner."""

    existing: tuple[Obj, ...] = ()
    dangling: tuple[Obj, ...] = ()
    """The owner does not exist, or its name now belongs to another object."""
    waiting: tuple[Obj, ...] = ()
    """The owner is being deleted in the foreground."""


class OwnerGraph:
    """The graph of owners and dependents. The caller reports changes with `put` and removals with `drop`."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def put(self, resource: Resource, obj: Obj) -> None:
        self._unlink(uid_of(obj))
        self._entries[uid_of(obj)] = Entry(resource, obj)
        for ref in owners_of(obj):
            self._dependents.setdefault(ref["uid"], {})[uid_of(obj)] = None

    def drop(self, obj: Obj) -> None:
        self._unlink(uid_of(obj))
        self._entries.pop(uid_of(obj), None)

    def get(self, uid: str) -> Entry | None:
        return self._entries.get(uid)

    def dependents_of(self, uid: str) -> list[Entry]:
        """Return the objects that have an owner reference to this UID, in order of their creation."""
        return [self._entries[dependent] for dependent in self._dependents.get(uid, ())]

    def has_blockers(self, uid: str) -> bool:
        """Return whether the owner has dependents that block its foreground deletion."""
        return any(_blocks(owners_of(self._entries[dependent].obj), uid) for dependent in self._dependents.get(uid, ()))

    def owners_of(self, obj: Obj) -> Owners:
        existing: list[Obj] = []
        dangling: list[Obj] = []
        waiting: list[Obj] = []
        for ref in owners_of(obj):
            owner = self._entries.get(ref["uid"])
            if owner is None or not _names(ref, owner, namespace_of(obj)):
                # An owner of a kind that is not served here cannot be looked up. The graph assumes that it exists.
                (dangling if by_kind(ref["apiVersion"], ref["kind"]) else existing).append(ref)
            elif owner.is_deleting_dependents and ref.get("blockOwnerDeletion"):
                waiting.append(ref)
            else:
                existing.append(ref)
        return Owners(tuple(existing), tuple(dangling), tuple(waiting))

    def _unlink(self, uid: str) -> None:
        entry = self._entries.get(uid)
        for ref in owners_of(entry.obj) if entry else ():
            siblings = self._dependents.get(ref["uid"], {})
            siblings.pop(uid, None)
            if not siblings:
                self._dependents.pop(ref["uid"], None)


def _names(ref: Mapping[str, Any], owner: Entry, namespace: str) -> bool:
    """Return whether the reference is to this object. The namespace of the object must allow it."""
    same = (ref["kind"], ref["name"]) == (owner.resource.kind, name_of(owner.obj))
    return same and namespace_of(owner.obj) in ("", namespace)


def _blocks(refs: Iterable[Mapping[str, Any]], uid: str) -> bool:
    return any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in refs)
