"""The versioned store: objects, one revision counter, and the recent changes.

Objects in the store never change. A new version is a new dict. Lists, watches and snapshots therefore share versions,
and each version is encoded to JSON at most once. The objects of one resource are ordered by key, with an index by label
and a window of recent changes. The store knows nothing of the meaning of objects, of HTTP, or of time.
"""

from __future__ import annotations

import bisect
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from gangjobs_sandbox.journal import Journal, Record
from gangjobs_sandbox.resources import RESOURCES, Resource, by_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gangjobs_sandbox.apimachinery.selectors import Selector
    from gangjobs_sandbox.resources import Resource

__all__ = [
    "Event",
    "EventType",
    "Expired",
    "Key",
    "Object",
    "Observer",
    "ResourceIndex",
    "Store",
    "Stored",
    "Versions",
    "key_of",
    "objects_copy",
]


Object = dict[str, Any]
Key = tuple[str, str]
"""The namespace ("" for a cluster-scoped object) and the name."""


Versions = list["Stored"]
Events = list["Event"]
WINDOW = 10_000
"""The number of changes that are kept per resource. A client that is further behind gets 410 and lists again."""
INDEXED_LABELS = frozenset({"batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid", "job-name"})
"""The labels by which controllers and watches select most often. An index makes these selections fast."""


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


class Expired(Exception):  # noqa: N818 - the name is Kubernetes' reason
    """The requested revision is older than the history that is kept."""

    def __init__(self, wanted: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {wanted} ({oldest})")
        self.wanted = wanted
        self.oldest = oldest


class ResourceIndex:
    """The objects of one resource, their indexes, and the most recent changes.

    `window` is the number of changes that are kept. `indexed_labels` are the label keys that have an index.
    """

    def __init__(self, window: int, indexed_labels: frozenset[str]) -> None:
        self.objects: dict[Key, Stored] = {}
        self.keys: list[Key] = []
        """The keys of all objects, in order."""
        self.by_label: dict[tuple[str, str], set[Key]] = defaultdict(set)
        self.indexed_labels = indexed_labels
        self.window = window
        self.events: list[Event] = []
        self.compacted_revision = 0
        """Revision of the newest change that is no longer kept."""

    def record(self, event: Event) -> None:
        """Add a change to the window, and drop the oldest changes that no longer fit."""
        self.events.append(event)
        if len(self.events) > self.window:
            self.compacted_revision = self.events[len(self.events) - self.window - 1].revision
        if len(self.events) > self.window + self.window // 8:
            del self.events[: -self.window]

    def since(self, revision: int) -> list[Event]:
        """Return all changes after this revision, oldest first.

        Raises:
            Expired: the window no longer contains all of them.
        """
        if revision < self.compacted_revision:
            raise Expired(revision, self.compacted_revision)
        return self.events[bisect.bisect_right(self.events, revision, key=lambda event: event.revision) :]

    def at(self, revision: int, namespace: str | None) -> list[Stored]:
        """Return the objects as they were at this revision, ordered by key.

        Raises:
            Expired: the window no longer contains all changes since that revision.
        """
        objects, keys = dict(self.objects), self.keys
        for event in reversed(self.since(revision)):
            key = key_of(event.obj)
            if event.old_stored is None:
                del objects[key]
            else:
                objects[key] = event.old_stored
            if event.type is not EventType.MODIFIED:
                keys = []
        return [objects[key] for key in _range_of(keys or sorted(objects), namespace)]

    def compact_history(self, revision: int) -> None:
        """Drop all changes up to this revision, which is the newest."""
        self.compacted_revision = revision
        self.events.clear()

    def put(self, key: Key, stored: Stored) -> None:
        """Add the object, or replace its previous version."""
        old = self.objects.get(key)
        if old is None:
            bisect.insort(self.keys, key)
        else:
            self._index(key, old, present=False)
        self.objects[key] = stored
        self._index(key, stored, present=True)

    def remove(self, key: Key) -> None:
        """Remove the object."""
        self._index(key, self.objects.pop(key), present=False)
        del self.keys[bisect.bisect_left(self.keys, key)]

    def _index(self, key: Key, stored: Stored, *, present: bool) -> None:
        for pair in stored.labels.items():
            if pair[0] in self.indexed_labels:
                (self.by_label[pair].add if present else self.by_label[pair].discard)(key)

    def candidates(self, namespace: str | None, selector: Selector | None) -> Iterable[Key]:
        """Return the ordered keys of the objects that the selector may match.

        The keys come from the label index if one of the selector's labels is indexed; otherwise the result is all keys.
        """
        for pair in selector.exact.items() if selector else ():
            if pair[0] in self.indexed_labels:
                return sorted(_within(self.by_label.get(pair, ()), namespace))
        return _range_of(self.keys, namespace)


def _within(keys: Iterable[Key], namespace: str | None) -> Iterable[Key]:
    return keys if namespace is None else (key for key in keys if key[0] == namespace)


def _range_of(keys: list[Key], namespace: str | None) -> list[Key]:
    """Return the part of the ordered keys that belongs to the namespace; None means all namespaces."""
    if namespace is None:
        return keys
    start = bisect.bisect_left(keys, (namespace, ""))
    return keys[start : bisect.bisect_right(keys, namespace, start, key=itemgetter(0))]


Observer = Callable[[Event], None]


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
