"""The versioned store: objects, one revision counter, and the recent changes.

Objects in the store never change (see `revisions`). The store knows nothing of the meaning of objects, of HTTP, or of
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from gangjobs_sandbox.journal import Journal, Record
from gangjobs_sandbox.resource_index import Expired, ResourceIndex
from gangjobs_sandbox.resources import RESOURCES, Resource, by_key
from gangjobs_sandbox.revisions import Event, EventType, Key, Object, Stored, key_of, objects_copy

if TYPE_CHECKING:
    from gangjobs_sandbox.apimachinery.selectors import Selector

__all__ = ["Event", "EventType", "Expired", "Object", "Observer", "Store", "Stored", "Versions", "objects_copy"]

Versions = list["Stored"]
Events = list["Event"]
Observer = Callable[[Event], None]

WINDOW = 10_000
"""The number of changes that are kept per resource. A client that is further behind gets 410 and lists again."""

INDEXED_LABELS = frozenset({"batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid", "job-name"})
"""The labels by which controllers and watches select most often. An index makes these selections fast."""


class Store:
    """Objects by resource, namespace and name, with their history. A stored object never changes."""

    def __init__(self, journal: Journal | None = None, *, window: int = WINDOW) -> None:
        assert window > 0, "a store without a window could not be watched"
        self.revision = 0
        self._indexes = {resource: ResourceIndex(window, INDEXED_LABELS) for resource in RESOURCES}
        self._observers: list[Observer] = []
        self._undelivered: deque[Event] = deque()
        self._delivering = False
        self._journal = journal
        if journal is not None:
            self._replay(journal)

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        return self._indexes[resource].objects.get((namespace, name))

    def list(self, resource: Resource, namespace: str | None = None, selector: Selector | None = None) -> Versions:
        """Return the objects of a namespace (None means all) that match the selector, ordered by namespace and name."""
        index = self._indexes[resource]
        found = [index.objects[key] for key in index.candidates(namespace, selector)]
        if selector is None or not selector.requirements:
            return found
        return [stored for stored in found if selector.matches(stored.labels)]

    def list_at(self, resource: Resource, revision: int, namespace: str | None = None) -> Versions:
        """Return the objects of a namespace (None means all) as they were at an earlier revision.

        Raises:
            Expired: the history no longer contains that revision.
        """
        return self._indexes[resource].at(revision, namespace)

    def events_since(self, resource: Resource, revision: int) -> Events:
        """Return all changes after this revision, oldest first.

        Raises:
            Expired: the history no longer contains all of them.
        """
        return self._indexes[resource].since(revision)

    def put(self, resource: Resource, obj: Object) -> Stored:
        """Store a new or changed object under the next revision. The caller must not change the dict afterwards."""
        key = key_of(obj)
        old = self._indexes[resource].objects.get(key)
        stored = _stamped(obj, self.revision + 1)
        self._write(resource, key, stored, deleted=False)
        self._commit(Event(EventType.MODIFIED if old else EventType.ADDED, resource, stored, old))
        return stored

    def remove(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Remove an object. Returns its last version, under the revision of the removal."""
        old = self._indexes[resource].objects[namespace, name]
        stored = _stamped(old.obj, self.revision + 1)
        self._write(resource, (namespace, name), stored, deleted=True)
        self._commit(Event(EventType.DELETED, resource, stored, old))
        return stored

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call the observer after each change, in order of revision. Returns a function that removes the observer.

        An observer may write. Its change is made immediately, and delivered after the current one.
        """
        self._observers.append(observer)

        def stop() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return stop

    def close(self) -> None:
        """Release the data directory. Safe to repeat."""
        if self._journal is not None:
            self._journal.close()

    def compact_history(self, resource: Resource | None = None) -> None:
        """Drop the history, as the compaction of etcd does. Older watches and continue tokens get 410."""
        for index in self._indexes.values() if resource is None else [self._indexes[resource]]:
            index.compact_history(self.revision)

    def _write(self, resource: Resource, key: Key, stored: Stored, *, deleted: bool) -> None:
        if self._journal is None:
            return
        obj = None if deleted else msgspec.Raw(stored.json)
        self._journal.append(Record(stored.revision, resource.key, *key, obj))

    def _commit(self, event: Event) -> None:
        self._apply(event)
        self._undelivered.append(event)
        if not self._delivering:
            self._deliver()
        if self._journal is not None and self._journal.is_long:
            self._journal.compact(self.revision, self._records())

    def _apply(self, event: Event) -> None:
        index, key = self._indexes[event.resource], key_of(event.obj)
        assert event.revision > self.revision, "revisions only grow"
        self.revision = event.revision
        if event.type is EventType.DELETED:
            index.remove(key)
        else:
            index.put(key, event.stored)
        index.record(event)

    def _deliver(self) -> None:
        self._delivering = True
        try:
            while self._undelivered:
                event = self._undelivered.popleft()
                for observer in tuple(self._observers):
                    observer(event)
        finally:
            self._delivering = False

    def _records(self) -> Iterator[Record]:
        for resource, index in self._indexes.items():
            for key, stored in index.objects.items():
                yield Record(stored.revision, resource.key, *key, msgspec.Raw(stored.json))

    def _replay(self, journal: Journal) -> None:
        for record in sorted(journal.load(), key=lambda record: record.revision):
            if not record.resource:
                # This record ends the snapshot. The history before it is unknown.
                self.revision = max(self.revision, record.revision)
                self.compact_history()
                continue
            resource = by_key(record.resource)
            old = self._indexes[resource].objects.get((record.namespace, record.name))
            if record.obj is None:
                assert old is not None, "the journal removes what it never added"
                event = Event(EventType.DELETED, resource, _stamped(old.obj, record.revision), old)
            else:
                kind = EventType.MODIFIED if old else EventType.ADDED
                event = Event(kind, resource, Stored(record.obj, record.revision), old)
            self._apply(event)


def _stamped(obj: Object, revision: int) -> Stored:
    return Stored({**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}, revision)
