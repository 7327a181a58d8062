"""The objects of one resource ordered by key, with an index by label and a window of recent changes."""

from __future__ import annotations

import bisect
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

from gangjobs_sandbox.revisions import EventType, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangjobs_sandbox.apimachinery.selectors import Selector
    from gangjobs_sandbox.revisions import Event, Key, Stored

__all__ = ["Expired", "ResourceIndex"]


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
