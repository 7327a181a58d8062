"""The objects of an informer and the subscriptions to them. The store applies events and does no I/O.

The uid identifies an object: an object that reuses a name is another object. Versions are compared for equality only,
never for order. Notifications are level-triggered: a subscriber learns that an object of its key changed and reads the
current state. Several changes before the subscriber reads are one change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from airflow_provider_gangjobs.cluster.loop_local import Notification

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_gangjobs.cluster.clock import TimeSlice


class _Metadata(Protocol):
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class HasMetadata(Protocol):
    """The fields that a view must have. The Structs of `kube.views` have them."""

    @property
    def metadata(self) -> _Metadata: ...


V = TypeVar("V", bound=HasMetadata)


_NOTHING: Mapping[str, Any] = {}


class InformerClosedError(RuntimeError):
    """The informer was closed while a task waited for it. Acquire it again."""


class Subscription(Generic[V]):
    """One subscriber's view of the objects of one key. Read `objects()` first, and then wait for `changed()`.

    Several subscriptions may share a `notification`, which is sent when an object of any of them changes.
    """

    __slots__ = ("_deleted", "_notification", "_store", "_updated", "key")

    def __init__(self, store: Store[V], key: str, notification: Notification | None = None) -> None:
        self.key = key
        self._store = store
        self._notification = notification or Notification()
        self._updated: set[str] = set(store.peek(key))
        self._deleted: dict[str, V] = {}

    def objects(self) -> dict[str, V]:
        """Return a copy of the current objects, by uid."""
        return self._store.objects(self.key)

    def peek(self) -> Mapping[str, V]:
        """Return the current objects by uid, without a copy. Do not keep the mapping across an await."""
        return self._store.peek(self.key)

    def take_updated(self, at_most: int | None = None) -> dict[str, V]:
        """Remove and return the objects that changed since they were last taken, by uid.

        At first, all existing objects count as changed.

        :param at_most: Leave further objects for the next calls, because 100,000 objects may change at once.
        """
        current = self._store.peek(self.key)
        count = len(self._updated) if at_most is None else min(at_most, len(self._updated))
        updated = [self._updated.pop() for _ in range(count)]
        return {uid: current[uid] for uid in updated if uid in current}

    def take_deleted(self, at_most: int | None = None) -> dict[str, V]:
        """Remove and return the last views of objects that disappeared, by uid.

        An object disappears when it is deleted, or changes so that the selector or index no longer covers it.

        :param at_most: Leave further objects for the next calls.
        """
        if at_most is None or len(self._deleted) <= at_most:
            deleted, self._deleted = self._deleted, {}
            return deleted
        return dict(self._deleted.popitem() for _ in range(at_most))

    async def changed(self, timeout_s: float | None = None) -> bool:
        """Wait for a change since the last call that returned True. Return False after `timeout_s` seconds without one.

        Raises:
            InformerClosedError: the informer was closed and reports no further changes.
        """
        has_changed = await self._notification.wait(timeout_s)
        self.check()
        return has_changed

    def check(self) -> None:
        """Check that the informer is open.

        Raises:
            InformerClosedError: the informer was closed and reports no further changes.
        """
        if self._store.closed:
            raise InformerClosedError(f"the informer that watched {self.key!r} was closed")

    def close(self) -> None:
        """Stop receiving notifications. Safe to repeat."""
        self._store.unsubscribe(self)

    def notify(self) -> None:
        """Wake the subscriber."""
        self._notification.notify()

    def record_update(self, uid: str) -> None:
        """Note that an object was added or changed, and wake the subscriber."""
        if self._deleted:
            self._deleted.pop(uid, None)
        self._updated.add(uid)
        self._notification.notify()

    def record_deletion(self, uid: str, last: V) -> None:
        """Note the last state of an object that was deleted, and wake the subscriber."""
        self._updated.discard(uid)
        self._deleted[uid] = last
        self._notification.notify()


class Store(Generic[V]):
    """Objects by key and uid. An object whose key is None is not kept."""

    def __init__(
        self, index: Callable[[V], str | None], *, intern: Callable[[V, V | None], None] | None = None
    ) -> None:
        """
        :param index: Returns the key of an object, or None to leave the object out.
        :param intern: Called with each new view and the previous view of the same object, if any. Replaces values of
            the new view by equal ones of other views (`kube.interning`).
        """
        self._index = index
        self._intern = intern
        self._keys: dict[str, str] = {}
        self._objects: dict[str, dict[str, V]] = {}
        self._subscriptions: dict[str, list[Subscription[V]]] = {}
        self._synced = asyncio.Event()
        self._is_listing = False
        self.closed = False
        self.index_errors = 0

    # -- for subscribers -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def is_synced(self) -> bool:
        """True after the first complete list. Before, an object that is not in the store may exist."""
        return self._synced.is_set() and not self.closed

    @property
    def is_snapshot(self) -> bool:
        """True if the objects are the server's state at one moment. While a list is read, they are a mixture of two."""
        return self.is_synced and not self._is_listing

    async def synced(self, timeout_s: float | None = None) -> bool:
        """Wait for the first complete list. Return False if it does not arrive within `timeout_s` seconds.

        Raises:
            InformerClosedError: the informer was closed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._synced.wait()
        except TimeoutError:
            return False
        if self.closed:
            raise InformerClosedError("the informer was closed")
        return True

    def objects(self, key: str) -> dict[str, V]:
        """Return a copy of the objects of a key, by uid."""
        return dict(self.peek(key))

    def peek(self, key: str) -> Mapping[str, V]:
        """Return the objects of a key without a copy: a gang may have 100,000. Do not keep it across an await."""
        return self._objects.get(key, _NOTHING)

    def keys(self) -> list[str]:
        """Return the keys that have objects now."""
        return list(self._objects)

    def forget(self, key: str) -> bool:
        """Drop the objects of a key, and notify nobody. Return False if the key has a subscription.

        An object that changes, or that is listed again, is stored again. The caller knows that nobody needs to see the
        objects: a later subscriber would take them for deleted.
        """
        if key in self._subscriptions:
            return False
        for uid in self._objects.pop(key, {}):
            del self._keys[uid]
        return True

    def subscribe(self, key: str, notification: Notification | None = None) -> Subscription[V]:
        """Subscribe to the objects of a key.

        :param notification: What wakes the subscriber. By default the subscription has its own.

        Raises:
            InformerClosedError: the informer is closed.
        """
        if self.closed:
            raise InformerClosedError("the informer was closed")
        subscription = Subscription(self, key, notification)
        self._subscriptions.setdefault(key, []).append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription[V]) -> None:
        """End a subscription. Safe to repeat."""
        others = [s for s in self._subscriptions.get(subscription.key, ()) if s is not subscription]
        if others:
            self._subscriptions[subscription.key] = others
        else:
            self._subscriptions.pop(subscription.key, None)

    @property
    def subscription_count(self) -> int:
        """Number of subscriptions to all keys."""
        return sum(map(len, self._subscriptions.values()))

    # -- for the reflector -----------------------------------------------------------------------------------

    def put(self, view: V) -> bool:
        """Store the current state of an object. Return False, and notify nobody, if its version is known already."""
        meta = view.metadata
        uid = meta.uid
        assert uid, "an object without a uid is not from an API server"
        old_key = self._keys.get(uid)
        previous = None if old_key is None else self._objects[old_key][uid]
        if previous is not None and previous.metadata.resource_version == meta.resource_version:
            return False
        if self._intern is not None:
            self._intern(view, previous)
        key = self._key_of(view)
        if old_key is not None and old_key != key:
            self._delete(uid, view)
        if key is None:
            return old_key is not None
        self._objects.setdefault(key, {})[uid] = view
        if old_key != key:
            self._keys[uid] = key
        for subscription in self._subscriptions.get(key, ()):
            subscription.record_update(uid)
        return True

    def remove(self, view: V) -> bool:
        """Remove a deleted object, given its last state. Return False if the object was not in the store.

        Subscribers of its key are notified in both cases.
        """
        uid = view.metadata.uid
        old_key = self._keys.get(uid)
        if self._intern is not None:
            self._intern(view, None if old_key is None else self._objects[old_key][uid])
        if old_key is not None:
            self._delete(uid, view)
        elif (key := self._key_of(view)) is not None:
            self._notify_deletion(key, uid, view)
        return old_key is not None

    def begin_list(self) -> set[str]:
        """Begin to replace all objects by those of a new list. Return the uids that the list has not shown yet.

        The caller discards the uid of each object of the list, and passes the rest to `end_list` after the last page.
        """
        self._is_listing = True
        return set(self._keys)

    async def end_list(self, missing: set[str], time_slice: TimeSlice) -> None:
        """Remove the missing objects, whose deletion was not observed. Then the store has all objects of the list.

        The last known view of an object counts as its last state. An object may have been forgotten while the list was
        read. Other tasks run in between, because there may be 100,000 objects.
        """
        for uid in missing:
            if (key := self._keys.get(uid)) is not None:
                self._delete(uid, self._objects[key][uid])
            await time_slice.yield_if_due()
        self._is_listing = False
        if not self._synced.is_set():
            self._synced.set()
            self._notify_all()

    def close(self) -> None:
        """Notify each subscriber for the last time. Safe to repeat."""
        self.closed = True
        self._synced.set()
        self._notify_all()

    async def clear(self, time_slice: TimeSlice) -> None:
        """Drop all objects after the last subscriber has left. Other tasks run in between."""
        self._keys.clear()
        while self._objects:
            _, objects = self._objects.popitem()
            while objects:
                objects.popitem()
                await time_slice.yield_if_due()

    def _key_of(self, view: V) -> str | None:
        """Return the key of an object. If the index function fails, the object keeps its key."""
        try:
            return self._index(view)
        except Exception:
            self.index_errors += 1
            return self._keys.get(view.metadata.uid)

    def _delete(self, uid: str, last: V) -> None:
        key = self._keys.pop(uid)
        objects = self._objects[key]
        del objects[uid]
        if not objects:
            del self._objects[key]
        self._notify_deletion(key, uid, last)

    def _notify_deletion(self, key: str, uid: str, last: V) -> None:
        for subscription in self._subscriptions.get(key, ()):
            subscription.record_deletion(uid, last)

    def _notify_all(self) -> None:
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.notify()
