"""The informer's picture of the cluster, and who looks at it. Pure: applies events, does no I/O, knows no server.

Objects are known by uid; a name that is used again is another object. Versions are compared for equality only,
never for order. Subscribers are woken by level: something of yours changed, so look at the state. What has
changed before anyone looked is seen as one change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from airflow_provider_gangjobs.cluster.informer.notify import Wake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_provider_gangjobs.cluster.clock import Slices


class _Metadata(Protocol):
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class HasMetadata(Protocol):
    """What a view must have: `objects.views` has such Structs."""

    @property
    def metadata(self) -> _Metadata: ...


V = TypeVar("V", bound=HasMetadata)


_NOTHING: Mapping[str, Any] = {}


class InformerClosedError(RuntimeError):
    """The informer was closed while someone waited for it; lease it again."""


class Subscription(Generic[V]):
    """One consumer's sight of the objects of one key. Look first, then wait: `objects()`, then `changed()`.

    Several subscriptions may share a `wake`, which is set when anything of any of them has changed.
    """

    __slots__ = ("_deleted", "_store", "_updated", "_wake", "key")

    def __init__(self, store: Store[V], key: str, wake: Wake | None = None) -> None:
        self.key = key
        self._store = store
        self._wake = wake or Wake()
        self._updated: set[str] = set(store.peek(key))
        self._deleted: dict[str, V] = {}

    def objects(self) -> dict[str, V]:
        """The objects that exist now, by uid."""
        return self._store.objects(self.key)

    def peek(self) -> Mapping[str, V]:
        """The same, live and not copied. Not to be kept over an await."""
        return self._store.peek(self.key)

    def take_updated(self, at_most: int | None = None) -> dict[str, V]:
        """Those that were added or changed and were not taken since, by uid. The first calls give all that exist.

        :param at_most: Leave the others for the next calls: a hundred thousand may change at once.
        """
        current = self._store.peek(self.key)
        if at_most is None or len(self._updated) <= at_most:
            updated, self._updated = self._updated, set()
        else:
            updated = {self._updated.pop() for _ in range(at_most)}
        return {uid: current[uid] for uid in updated if uid in current}

    def take_deleted(self, at_most: int | None = None) -> dict[str, V]:
        """The last view of those that went away, by uid; each is given once.

        They were deleted, or changed so that the selector or index no longer covers them.

        :param at_most: Leave the others for the next calls.
        """
        if at_most is None or len(self._deleted) <= at_most:
            deleted, self._deleted = self._deleted, {}
            return deleted
        return dict(self._deleted.popitem() for _ in range(at_most))

    async def changed(self, timeout_s: float | None = None) -> bool:
        """Wait until something of ours has changed since this last returned True; False if nothing did in time.

        Raises:
            InformerClosedError: nothing will change any more.
        """
        has_changed = await self._wake.sleep(timeout_s)
        self.check()
        return has_changed

    def check(self) -> None:
        """
        Raises:
            InformerClosedError: nothing will change any more.
        """
        if self._store.closed:
            raise InformerClosedError(f"the informer that watched {self.key!r} was closed")

    def close(self) -> None:
        """Hear of nothing more; safe to repeat."""
        self._store.unsubscribe(self)

    def wake(self) -> None:
        self._wake.set()

    def note_update(self, uid: str) -> None:
        if self._deleted:
            self._deleted.pop(uid, None)
        self._updated.add(uid)
        self._wake.set()

    def note_deletion(self, uid: str, last: V) -> None:
        self._updated.discard(uid)
        self._deleted[uid] = last
        self._wake.set()


class Relist(Generic[V]):
    """A list being read, page by page. Finish it only if it was read to its end.

    Of what is known already nothing is kept twice: views of the same version are dropped at once, and uids that
    are still to be seen are the store's own.
    """

    def __init__(self, store: Store[V]) -> None:
        self._store = store
        self._unseen = store.uids()

    def put(self, view: V) -> None:
        self._unseen.discard(view.metadata.uid)
        self._store.put(view)

    def keep(self, uid: str) -> None:
        """It is in the list and cannot be read: what is known of it stays."""
        self._unseen.discard(uid)

    async def finish(self, slices: Slices) -> None:
        """What was not in the list exists no more. A hundred thousand may have gone, so others run in between."""
        for uid in self._unseen:
            self._store.vanish(uid)
            await slices.breathe()
        self._store.listed()


class Store(Generic[V]):
    """Objects by key and uid. An object whose key is None belongs to nobody and is not kept."""

    def __init__(self, index: Callable[[V], str | None], *, share: Callable[[V, V | None], None] | None = None) -> None:
        """
        :param share: Called with each new view, and the one before of the same object, if there is one: lets it have in
            common with that one, and with others, what is equal (`objects.sharing`).
        """
        self._index = index
        self._share = share
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
        """True once the whole list has been read; before, what is missing may exist."""
        return self._synced.is_set() and not self.closed

    @property
    def is_of_one_moment(self) -> bool:
        """True if what is shown is how the server was at one moment, and no mixture of two, as while a list is read."""
        return self.is_synced and not self._is_listing

    async def synced(self, timeout_s: float | None = None) -> bool:
        """Wait for the first whole list; False if it has not come in time.

        Raises:
            InformerClosedError: it will not come.
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
        return dict(self.peek(key))

    def peek(self, key: str) -> Mapping[str, V]:
        """The live objects of a key, not copied: a gang may have a hundred thousand. Not to be kept over an await."""
        return self._objects.get(key, _NOTHING)

    def subscribe(self, key: str, wake: Wake | None = None) -> Subscription[V]:
        if self.closed:
            raise InformerClosedError("the informer was closed")
        subscription = Subscription(self, key, wake)
        self._subscriptions.setdefault(key, []).append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription[V]) -> None:
        others = [s for s in self._subscriptions.get(subscription.key, ()) if s is not subscription]
        if others:
            self._subscriptions[subscription.key] = others
        else:
            self._subscriptions.pop(subscription.key, None)

    @property
    def subscription_count(self) -> int:
        return sum(map(len, self._subscriptions.values()))

    # -- for the reflector -----------------------------------------------------------------------------------

    def put(self, view: V) -> bool:
        """An object as it is now. Seeing the same version again changes nothing and wakes nobody; False if so."""
        meta = view.metadata
        uid = meta.uid
        assert uid, "an object without a uid is not from an API server"
        old_key = self._keys.get(uid)
        known = None if old_key is None else self._objects[old_key][uid]
        if known is not None and known.metadata.resource_version == meta.resource_version:
            return False
        if self._share is not None:
            self._share(view, known)
        key = self._key_of(view)
        if old_key is not None and old_key != key:
            self._drop(uid, view)
        if key is None:
            return old_key is not None
        of_key = self._objects.get(key)
        if of_key is None:
            of_key = self._objects[key] = {}
        of_key[uid] = view
        if old_key != key:
            self._keys[uid] = key
        for subscription in self._subscriptions.get(key, ()):
            subscription.note_update(uid)
        return True

    def remove(self, view: V) -> bool:
        """An object's last state. One that was never seen alive is still told to whoever waits for its key.

        False if nobody could be told anything new.
        """
        uid = view.metadata.uid
        old_key = self._keys.get(uid)
        if self._share is not None:
            self._share(view, None if old_key is None else self._objects[old_key][uid])
        if old_key is not None:
            self._drop(uid, view)
        elif (key := self._key_of(view)) is not None:
            self._bury(key, uid, view)
        return old_key is not None

    def relist(self) -> Relist[V]:
        self._is_listing = True
        return Relist(self)

    def uids(self) -> set[str]:
        return set(self._keys)

    def vanish(self, uid: str) -> None:
        """It is gone, and nobody saw it go: its last view is what there is of it."""
        self._drop(uid, self._objects[self._keys[uid]][uid])

    def listed(self) -> None:
        """The end of a list: this is the whole truth now."""
        self._is_listing = False
        if not self._synced.is_set():
            self._synced.set()
            self._wake_all()

    def close(self) -> None:
        """Wake everyone for the last time; safe to repeat."""
        self.closed = True
        self._synced.set()
        self._wake_all()

    async def forget(self, slices: Slices) -> None:
        """Let go of all objects, once nobody looks any more. To free a hundred thousand at once takes a while."""
        self._keys.clear()
        while self._objects:
            _, of_key = self._objects.popitem()
            while of_key:
                of_key.popitem()
                await slices.breathe()

    def _key_of(self, view: V) -> str | None:
        """The consumer's index; one that fails for an object leaves it where it was."""
        try:
            return self._index(view)
        except Exception:
            self.index_errors += 1
            return self._keys.get(view.metadata.uid)

    def _drop(self, uid: str, last: V) -> None:
        key = self._keys.pop(uid)
        of_key = self._objects[key]
        del of_key[uid]
        if not of_key:
            del self._objects[key]
        self._bury(key, uid, last)

    def _bury(self, key: str, uid: str, last: V) -> None:
        for subscription in self._subscriptions.get(key, ()):
            subscription.note_deletion(uid, last)

    def _wake_all(self) -> None:
        for subscription in self._all():
            subscription.wake()

    def _all(self) -> Iterator[Subscription[V]]:
        for subscriptions in self._subscriptions.values():
            yield from subscriptions
