"""The versioned store: objects, one revision counter, and what changed lately.

One rule makes it correct: objects in the store never change. A new version is a new dict, so lists,
watches and old snapshots share them freely, and each is encoded to JSON at most once.
Knows nothing of what objects mean, of HTTP, or of time.
"""

from __future__ import annotations

import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_gangjobs.sandbox.journal import Journal, Record
from airflow_provider_gangjobs.sandbox.resources import RESOURCES, Resource, by_key

if TYPE_CHECKING:
    from airflow_provider_gangjobs.objects.selector import Selector

__all__ = ["Event", "EventType", "Expired", "Object", "Observer", "Store", "Stored", "Versions", "objects_copy"]

Object = dict[str, Any]
Versions = list["Stored"]
Events = list["Event"]
Key = tuple[str, str]
"""Namespace ("" for cluster-wide objects) and name."""

WINDOW = 10_000
"""Changes kept per resource. A client that is further behind gets 410 and lists again."""

HOT_LABELS = frozenset({"batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid", "job-name"})
"""Labels that controllers and watchers select by all the time: kept in an index."""


class Expired(Exception):  # noqa: N818 - the name is Kubernetes' reason
    """The revision asked for is older than what is still kept."""

    def __init__(self, wanted: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {wanted} ({oldest})")
        self.wanted = wanted
        self.oldest = oldest


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Stored:
    """One version of one object, with its JSON."""

    __slots__ = ("_encoded", "obj", "revision")

    def __init__(self, obj: Object, revision: int) -> None:
        self.obj = obj
        self.revision = revision
        self._encoded: dict[str, bytes] = {}

    @property
    def json(self) -> bytes:
        """The object as JSON, encoded once however many read it."""
        return self.json_as("", lambda obj: obj)

    def json_as(self, view: str, convert: Callable[[Object], Object]) -> bytes:
        """The JSON of the object as seen through one API version, encoded once per view."""
        encoded = self._encoded.get(view)
        if encoded is None:
            encoded = self._encoded[view] = msgspec.json.encode(convert(self.obj))
        return encoded

    @property
    def labels(self) -> dict[str, str]:
        return self.obj["metadata"].get("labels") or {}


@dataclass(frozen=True, slots=True)
class Event:
    """One change. For DELETED, `obj` is the last version under the revision of its removal."""

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


Observer = Callable[[Event], None]


def objects_copy(value: Any) -> Any:
    """A copy of a JSON value that may be changed freely; several times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {name: objects_copy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [objects_copy(item) for item in value]
    return value


class _Shelf:
    """All objects of one resource, their indexes, and the recent changes."""

    def __init__(self, window: int, indexed_labels: frozenset[str]) -> None:
        self.objects: dict[Key, Stored] = {}
        self.by_label: dict[tuple[str, str], set[Key]] = defaultdict(set)
        self.indexed_labels = indexed_labels
        self.window = window
        self.events: list[Event] = []
        self.forgotten = 0
        """Revision of the newest change that is no longer kept."""

    def remember(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) > self.window:
            self.forgotten = self.events[len(self.events) - self.window - 1].revision
        if len(self.events) > 2 * self.window:
            del self.events[: -self.window]

    def index(self, key: Key, stored: Stored, *, present: bool) -> None:
        for pair in stored.labels.items():
            if pair[0] in self.indexed_labels:
                (self.by_label[pair].add if present else self.by_label[pair].discard)(key)

    def candidates(self, selector: Selector | None) -> Iterable[Key]:
        """Keys that a selector can match: by the index if one of its labels has one, else all."""
        for pair in selector.exact.items() if selector else ():
            if pair[0] in self.indexed_labels:
                return self.by_label.get(pair, set())
        return self.objects


class Store:
    """Objects by resource, namespace and name; see the module for what it promises."""

    def __init__(
        self, journal: Journal | None = None, *, window: int = WINDOW, indexed_labels: frozenset[str] = HOT_LABELS
    ) -> None:
        assert window > 0, "a store without a window could not be watched"
        self.revision = 0
        self._shelves = {resource: _Shelf(window, indexed_labels) for resource in RESOURCES}
        self._observers: list[Observer] = []
        self._undelivered: deque[Event] = deque()
        self._delivering = False
        self._journal = journal
        if journal is not None:
            self._replay(journal)

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        return self._shelves[resource].objects.get((namespace, name))

    def list(self, resource: Resource, namespace: str | None = None, selector: Selector | None = None) -> Versions:
        """The objects of a namespace (None: of all) that carry these labels, ordered by namespace and name."""
        shelf = self._shelves[resource]
        keys = sorted(key for key in shelf.candidates(selector) if namespace is None or key[0] == namespace)
        found = (shelf.objects[key] for key in keys)
        return [stored for stored in found if selector is None or selector.matches(stored.labels)]

    def list_at(self, resource: Resource, revision: int, namespace: str | None = None) -> Versions:
        """What `list` would have said at an earlier revision.

        Raises:
            Expired: that revision is older than what is still kept.
        """
        objects = dict(self._shelves[resource].objects)
        for event in reversed(self.events_since(resource, revision)):
            key = _key_of(event.obj)
            if event.old_stored is None:
                del objects[key]
            else:
                objects[key] = event.old_stored
        return [objects[key] for key in sorted(objects) if namespace is None or key[0] == namespace]

    def count(self, resource: Resource) -> int:
        return len(self._shelves[resource].objects)

    def events_since(self, resource: Resource, revision: int) -> Events:
        """All changes after this revision, oldest first.

        Raises:
            Expired: some of them are no longer kept.
        """
        shelf = self._shelves[resource]
        if revision < shelf.forgotten:
            raise Expired(revision, shelf.forgotten)
        start = bisect.bisect_right(shelf.events, revision, key=lambda event: event.revision)
        return shelf.events[start:]

    def put(self, resource: Resource, obj: Object) -> Stored:
        """Keep this version, new or changed, under the next revision. The dict is the store's from now on."""
        key = _key_of(obj)
        old = self._shelves[resource].objects.get(key)
        stored = _stamped(obj, self.revision + 1)
        self._write(resource, key, stored, deleted=False)
        self._commit(Event(EventType.MODIFIED if old else EventType.ADDED, resource, stored, old))
        return stored

    def remove(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Drop an object; what is returned is its last version under the revision of the removal."""
        old = self._shelves[resource].objects[namespace, name]
        stored = _stamped(old.obj, self.revision + 1)
        self._write(resource, (namespace, name), stored, deleted=True)
        self._commit(Event(EventType.DELETED, resource, stored, old))
        return stored

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call this after each change, in order of revision; returns what stops it.

        An observer may write: the change is done at once, and delivered after the present one.
        """
        self._observers.append(observer)

        def stop() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return stop

    def close(self) -> None:
        """Release the data directory; safe to repeat."""
        if self._journal is not None:
            self._journal.close()

    def forget(self, resource: Resource | None = None) -> None:
        """Drop the history, as the API server's compaction does: older watches and pages get 410."""
        for shelf in self._shelves.values() if resource is None else [self._shelves[resource]]:
            shelf.forgotten = self.revision
            shelf.events.clear()

    def statistics(self) -> dict[str, int]:
        """Number of objects by resource key."""
        return {resource.key: len(shelf.objects) for resource, shelf in self._shelves.items()}

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
        shelf, key = self._shelves[event.resource], _key_of(event.obj)
        assert event.revision > self.revision, "revisions only grow"
        self.revision = event.revision
        if event.old_stored is not None:
            shelf.index(key, event.old_stored, present=False)
        if event.type is EventType.DELETED:
            del shelf.objects[key]
        else:
            shelf.objects[key] = event.stored
            shelf.index(key, event.stored, present=True)
        shelf.remember(event)

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
        for resource, shelf in self._shelves.items():
            for key, stored in shelf.objects.items():
                yield Record(stored.revision, resource.key, *key, msgspec.Raw(stored.json))

    def _replay(self, journal: Journal) -> None:
        for record in sorted(journal.load(), key=lambda record: record.revision):
            if not record.resource:
                # The end of the snapshot: of what came before, only the result is known.
                self.revision = max(self.revision, record.revision)
                self.forget()
                continue
            resource = by_key(record.resource)
            old = self._shelves[resource].objects.get((record.namespace, record.name))
            if record.obj is None:
                assert old is not None, "the journal removes what it never added"
                event = Event(EventType.DELETED, resource, _stamped(old.obj, record.revision), old)
            else:
                kind = EventType.MODIFIED if old else EventType.ADDED
                event = Event(kind, resource, Stored(record.obj, record.revision), old)
            self._apply(event)


def _key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def _stamped(obj: Object, revision: int) -> Stored:
    return Stored({**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}, revision)
