"""All objects of one resource in order of their keys, with an index by label, and what changed lately."""

from __future__ import annotations

import bisect
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

from gangjobs_sandbox.versions import EventType, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_gangjobs.kube.selector import Selector
    from gangjobs_sandbox.versions import Event, Key, Stored

__all__ = ["Expired", "Shelf"]


class Expired(Exception):  # noqa: N818 - the name is Kubernetes' reason
    """The revision asked for is older than what is still kept."""

    def __init__(self, wanted: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {wanted} ({oldest})")
        self.wanted = wanted
        self.oldest = oldest


class Shelf:
    """All objects of one resource, their indexes, and the recent changes."""

    def __init__(self, window: int, indexed_labels: frozenset[str]) -> None:
        self.objects: dict[Key, Stored] = {}
        self.keys: list[Key] = []
        """Of all objects, in order."""
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
        if len(self.events) > self.window + self.window // 8:
            del self.events[: -self.window]

    def since(self, revision: int) -> list[Event]:
        """All changes after this revision, oldest first. Raises Expired."""
        if revision < self.forgotten:
            raise Expired(revision, self.forgotten)
        return self.events[bisect.bisect_right(self.events, revision, key=lambda event: event.revision) :]

    def at(self, revision: int, namespace: str | None) -> list[Stored]:
        """The objects as they were at this revision, in order: the changes since are undone. Raises Expired."""
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

    def forget(self, revision: int) -> None:
        """Keep no changes up to this revision, which is the newest."""
        self.forgotten = revision
        self.events.clear()

    def keep(self, key: Key, stored: Stored) -> None:
        """This version is the object from now on."""
        old = self.objects.get(key)
        if old is None:
            bisect.insort(self.keys, key)
        else:
            self._index(key, old, present=False)
        self.objects[key] = stored
        self._index(key, stored, present=True)

    def drop(self, key: Key) -> None:
        """The object is gone."""
        self._index(key, self.objects.pop(key), present=False)
        del self.keys[bisect.bisect_left(self.keys, key)]

    def _index(self, key: Key, stored: Stored, *, present: bool) -> None:
        for pair in stored.labels.items():
            if pair[0] in self.indexed_labels:
                (self.by_label[pair].add if present else self.by_label[pair].discard)(key)

    def candidates(self, namespace: str | None, selector: Selector | None) -> Iterable[Key]:
        """Keys in order of what a selector can match: by the index if one of its labels has one, else all."""
        for pair in selector.exact.items() if selector else ():
            if pair[0] in self.indexed_labels:
                return sorted(_within(self.by_label.get(pair, ()), namespace))
        return _range_of(self.keys, namespace)


def _within(keys: Iterable[Key], namespace: str | None) -> Iterable[Key]:
    return keys if namespace is None else (key for key in keys if key[0] == namespace)


def _range_of(keys: list[Key], namespace: str | None) -> list[Key]:
    """The part of the ordered keys that is of the namespace."""
    if namespace is None:
        return keys
    start = bisect.bisect_left(keys, (namespace, ""))
    return keys[start : bisect.bisect_right(keys, namespace, start, key=itemgetter(0))]
