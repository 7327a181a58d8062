"""The garbage collector deletes objects whose owners are gone.

The owner graph has all objects by uid, and the dependents of each uid. Events keep it up to date.

With background propagation, the owner is removed immediately and the collector deletes its dependents. With foreground
propagation, the owner keeps the finalizer `foregroundDeletion` until the dependents that block it are gone. With orphan
propagation, the owner keeps the finalizer `orphan` until its dependents no longer name it. Every deletion has a
precondition on the uid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.meta import Obj, finalizers_of, is_deleting, name_of, namespace_of, owners_of, uid_of
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Propagation, Registry
from gangjobs_sandbox.registry.metadata import FOREGROUND, ORPHAN
from gangjobs_sandbox.resources import EVENTS, RESOURCES, Resource, by_kind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.store import Event


_GONE_CODES = (404, 409)
"""The object is gone or was replaced by another of the same name, so there is nothing to do."""


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


class GarbageCollector:
    """Deletes dependents of deleted owners. Keys are UIDs."""

    name = "garbage-collector"

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._graph = OwnerGraph()
        self._dependents_queued: set[str] = set()
        """UIDs of owners in foreground deletion whose dependents have been queued for deletion."""
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for resource in RESOURCES:
            if resource is not EVENTS:
                for obj in registry.list(resource):
                    self._put(resource, obj)

    def observe(self, event: Event) -> None:
        # Events have no owners and no dependents, and they are numerous.
        if event.resource is EVENTS:
            return
        if event.type == "DELETED":
            self._drop(event.obj)
        else:
            self._put(event.resource, event.obj)

    def sync(self, key: Hashable) -> Cooperative[None]:
        """Process one object. Raises StatusError."""
        entry = self._graph.get(str(key))
        if entry is None:
            return
        if is_deleting(entry.obj):
            if ORPHAN in finalizers_of(entry.obj):
                yield from self._orphan(entry)
            elif FOREGROUND in finalizers_of(entry.obj):
                yield from self._delete_dependents(entry)
            return
        self._process_owners(entry)

    def _orphan(self, entry: Entry) -> Cooperative[None]:
        for dependent in self._graph.dependents_of(uid_of(entry.obj)):
            self._remove_owners(dependent, [uid_of(entry.obj)])
            yield
        self._remove_finalizer(entry, ORPHAN)

    def _delete_dependents(self, entry: Entry) -> Cooperative[None]:
        owner = uid_of(entry.obj)
        if not self._graph.has_blockers(owner):
            self._remove_finalizer(entry, FOREGROUND)
            return
        if owner in self._dependents_queued:
            return
        # Once is enough: a dependent that is created later is queued when it is created.
        self._dependents_queued.add(owner)
        for dependent in self._graph.dependents_of(owner):
            self.queue.add(uid_of(dependent.obj))
            yield

    def _process_owners(self, entry: Entry) -> None:
        owners = self._graph.owners_of(entry.obj)
        if owners.existing:
            if lost := [ref["uid"] for ref in (*owners.dangling, *owners.waiting)]:
                self._remove_owners(entry, lost)
        elif owners.waiting and self._graph.dependents_of(uid_of(entry.obj)):
            self._delete(entry, Propagation.FOREGROUND)
        elif owners.waiting or owners.dangling:
            self._delete(entry, _requested_policy(entry.obj))

    def _delete(self, entry: Entry, propagation: Propagation) -> None:
        obj = entry.obj
        try:
            self._registry.delete(
                entry.resource, name_of(obj), namespace_of(obj) or None, propagation=propagation, uid=uid_of(obj)
            )
        except StatusError as exc:
            if exc.code not in _GONE_CODES:
                raise

    def _remove_owners(self, entry: Entry, uids: list[str]) -> None:
        kept = [ref for ref in owners_of(entry.obj) if ref["uid"] not in uids]
        self._patch(entry, {"ownerReferences": kept or None})

    def _remove_finalizer(self, entry: Entry, finalizer: str) -> None:
        kept = [name for name in finalizers_of(entry.obj) if name != finalizer]
        self._patch(entry, {"finalizers": kept or None})

    def _patch(self, entry: Entry, metadata: Obj) -> None:
        obj = entry.obj
        patch = {"metadata": {"uid": uid_of(obj), **metadata}}
        try:
            self._registry.patch(entry.resource, name_of(obj), namespace_of(obj) or None, patch, PatchKind.MERGE)
        except StatusError as exc:
            if exc.code not in _GONE_CODES:
                raise

    def _put(self, resource: Resource, obj: Obj) -> None:
        self._graph.put(resource, obj)
        if owners_of(obj) or is_deleting(obj):
            self.queue.add(uid_of(obj))

    def _drop(self, obj: Obj) -> None:
        dependents = self._graph.dependents_of(uid_of(obj))
        self._graph.drop(obj)
        self._dependents_queued.discard(uid_of(obj))
        for dependent in dependents:
            self.queue.add(uid_of(dependent.obj))
        for ref in owners_of(obj):
            self.queue.add(ref["uid"])


def _requested_policy(obj: Obj) -> Propagation:
    """Return the propagation policy that an earlier request stored in the object's finalizers."""
    if ORPHAN in finalizers_of(obj):
        return Propagation.ORPHAN
    return Propagation.FOREGROUND if FOREGROUND in finalizers_of(obj) else Propagation.BACKGROUND
