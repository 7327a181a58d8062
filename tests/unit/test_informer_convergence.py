"""With any history and any faults, notifications are correct, come once, and are complete in the end.

The informer runs on its own against a model collection, in virtual time, while a state machine changes objects, makes
requests fail, and has consumers look. A consumer keeps what it pieces together from updates and deletions alone, and
checks the notifications at each look. At the end the faults stop, and each consumer must know all objects of its key.

The collection is that of a model API server, in memory: versions, history, pages, watches, and the faults of servers,
proxies and networks. The events of one watch are always in order, and DELETED never comes twice, because the watch of
an API server is one stream of revisions of etcd.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import (
    Forbidden,
    Gone,
    ReplyLost,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from airflow_provider_gangjobs.cluster.informer.health import Health
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig, Reflector, Target
from airflow_provider_gangjobs.cluster.informer.store import Store, Subscription
from airflow_provider_gangjobs.kube.resources import JOBS
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow_provider_gangjobs.cluster.http.transport import WatchLimits

IDLE_STEP_S = 5.0
"""How far the clock advances at each turn of a watch without events."""
BOOKMARK_EVERY_S = 60.0


class WatchFault(Enum):
    """The fault of a watch that the server has accepted."""

    CLOSES = auto()
    BOOKMARK_AND_CLOSES = auto()
    HALF_OPEN = auto()
    """The peer is lost without a FIN: no more bytes arrive, and the connection stays open."""
    REPEATS = auto()
    """Sends again the last event that the client already has."""


@dataclass
class Break:
    """The connection breaks after this many events."""

    after: int


Fault = Exception | WatchFault | Break


@dataclass
class Collection:
    """Objects with a name, a uid and a key. The next requests fail by the faults in the queues."""

    now: float = 0.0
    version: int = 1
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    oldest: int = 1
    connection: int = 0
    list_faults: list[Exception] = field(default_factory=list)
    watch_faults: list[Fault] = field(default_factory=list)
    requests: int = 0
    watches: int = 0
    touched: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By key: the version at which an object of the key was last created, changed, or deleted."""
    applied_version: Callable[[], int] = int
    """Returns the version up to which the informer has applied all changes."""
    left: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By key: how often each uid has lost the key, by a deletion or by a change."""

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, sleep=self.sleep, random=random.Random(1))

    # -- changes ---------------------------------------------------------------------------------------------

    def put(self, name: str, key: str) -> None:
        """Create or change the object of this name. After a deletion it is another object, with another uid."""
        known = self.objects.get(name)
        metadata = known["metadata"] if known else {"name": name, "uid": f"{name}-{self.version}", "labels": {}}
        old_key = metadata["labels"].get("key")
        if old_key not in (None, key):
            self.left[old_key][metadata["uid"]] += 1
        self._commit("MODIFIED" if known else "ADDED", {**metadata, "labels": {"key": key}}, old_key, key)

    def delete(self, name: str) -> None:
        if name in self.objects:
            metadata = self.objects[name]["metadata"]
            key = metadata["labels"]["key"]
            self.left[key][metadata["uid"]] += 1
            self._commit("DELETED", metadata, key)

    def _commit(self, kind: str, metadata: dict[str, Any], *keys: str | None) -> None:
        self.version += 1
        obj = {"metadata": {**metadata, "resourceVersion": str(self.version)}}
        self.history.append((self.version, {"type": kind, "object": obj}))
        for key in keys:
            if key is not None:
                self.touched[key] = self.version
        if kind == "DELETED":
            del self.objects[metadata["name"]]
        else:
            self.objects[metadata["name"]] = obj

    def compact(self) -> None:
        """Drop the history, so that no earlier watch can be resumed, and no list can be continued."""
        self.history.clear()
        self.oldest = self.version

    def cut(self) -> None:
        """Close all connections."""
        self.connection += 1

    def versions_of(self, keys: tuple[str, ...]) -> dict[str, str]:
        """Return the version of each existing object of these keys, by uid."""
        metadata = [obj["metadata"] for obj in self.objects.values()]
        return {m["uid"]: m["resourceVersion"] for m in metadata if m["labels"]["key"] in keys}

    # -- requests --------------------------------------------------------------------------------------------

    async def list_page(self, *_: Any, limit: int, continue_token: str | None, **__: Any) -> bytes:
        self.requests += 1
        await asyncio.sleep(0)
        if self.list_faults:
            raise self.list_faults.pop(0)
        version, start = map(int, continue_token.split("-")) if continue_token else (self.version, 0)
        if continue_token and version != self.version:
            raise Gone(410, request="")  # this server has no older versions
        names = sorted(self.objects)
        end = start + limit if limit else len(names)
        metadata = {"resourceVersion": str(version), "continue": f"{version}-{end}" if end < len(names) else None}
        return json.dumps({"metadata": metadata, "items": [self.objects[name] for name in names[start:end]]}).encode()

    async def watch(
        self,
        *_: Any,
        resource_version: str,
        limits: WatchLimits,
        on_open: Callable[[], None],
        **__: Any,
    ) -> AsyncGenerator[bytes, None]:
        self.requests += 1
        await asyncio.sleep(0)
        fault = self.watch_faults.pop(0) if self.watch_faults else None
        if isinstance(fault, Exception):
            raise fault
        at, connection, ends_at = int(resource_version), self.connection, self.now + limits.timeout_s
        if at < self.oldest:
            raise Gone(410, request="")
        self.watches += 1
        on_open()
        if fault is WatchFault.HALF_OPEN:
            await self._stay_silent(limits.timeout_s + limits.idle_margin_s)
        if fault is WatchFault.BOOKMARK_AND_CLOSES:
            yield _bookmark(at)
        if fault is WatchFault.REPEATS:
            for event in self._repeated(at):
                yield _line(event)
        sent, told_at = 0, self.now
        while self.connection == connection and self.now < ends_at and not isinstance(fault, WatchFault):
            if at < self.oldest:
                yield _line({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})
                return
            due = next((event for event in self.history if event[0] > at), None)
            if isinstance(fault, Break) and sent == fault.after:
                raise ReplyLost("", "")
            if due is not None:
                at, event = due
                yield _line(event)
                sent, told_at = sent + 1, self.now
            elif self.now - told_at >= BOOKMARK_EVERY_S:
                told_at = self.now
                yield _bookmark(at)
            else:
                await self.sleep(IDLE_STEP_S)

    async def _stay_silent(self, idle_timeout_s: float) -> None:
        ends_at = self.now + idle_timeout_s
        while self.now < ends_at:
            await self.sleep(IDLE_STEP_S)
        raise ReplyLost("", "")

    def _repeated(self, at: int) -> list[dict[str, Any]]:
        known = [event for version, event in self.history if version <= at][-1:]
        return [event for event in known if event["type"] != "DELETED"]


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode()


def _bookmark(version: int) -> bytes:
    return _line({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}})


# -- The informer against the collection -----------------------------------------------------------------------------

TURNS_TO_CONVERGE = 5000
KEYS = ("k1", "k2")
FOREIGN = "key without a consumer"


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    name: str
    resource_version: str
    labels: dict[str, str]


class View(msgspec.Struct, frozen=True):
    metadata: Meta


def by_label(view: View) -> str | None:
    return view.metadata.labels.get("key")


@dataclass
class Consumer:
    """A consumer that waits for the objects of one key, and knows only the updates and deletions that it gets."""

    server: Collection
    store: Store[View]
    subscription: Subscription[View]
    known: dict[str, View] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    """The highest version that the consumer got of each uid, including deleted objects."""
    deletions: Counter[str] = field(default_factory=Counter)
    """How often the consumer got the deletion of each uid. The object was there again between two deletions."""
    applied: int = 0
    """The version up to which the store had all changes at the last look."""
    had_synced: bool = False

    async def look(self) -> None:
        """Take updates and deletions without waiting. Nothing else happens between the notification and the look."""
        was_woken = await self.subscription.changed(timeout_s=0)
        key = self.subscription.key
        deleted, updated = self.subscription.take_deleted(), self.subscription.take_updated()
        if was_woken and self.had_synced:
            assert self.server.touched[key] > self.applied, "notified of an object of another key"
        if not was_woken:
            assert not deleted, "not notified of a deletion"
            assert not updated or not self.known, "not notified of an update"
        assert not deleted.keys() & updated.keys(), "an object is both deleted and updated"
        self.deletions.update(deleted.keys())
        assert self.deletions <= self.server.left[key], "a deletion was reported twice, or never happened"
        for uid, view in [*updated.items(), *deleted.items()]:
            version = int(view.metadata.resource_version)
            assert version >= self.newest.get(uid, 0), "an object has an older version than before"
            self.newest[uid] = version
        self.known = {uid: view for uid, view in self.known.items() if uid not in deleted} | updated
        assert self.known == self.subscription.objects(), (
            "updates and deletions do not add up to the objects in the store"
        )
        self.applied, self.had_synced = self.server.applied_version(), self.store.is_synced


NAMES = st.sampled_from("abcdefg")
LIST_FAULTS = st.sampled_from(
    [Gone(410, request=""), ServerError(500, request=""), ReplyLost("", ""), Unauthorized(401, request="")]
)
WATCH_FAULTS: st.SearchStrategy[Fault] = st.one_of(
    st.sampled_from(
        [
            Gone(410, request=""),
            ServerError(500, request=""),
            ServerError(504, request="", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}),
            TooManyRequests(429, request="", retry_after_s=3.0),
            ReplyLost("", ""),
            Unauthorized(401, request=""),
            Forbidden(403, request=""),
            *WatchFault,
        ]
    ),
    st.builds(Break, st.integers(0, 3)),
)
CHANGES = st.lists(st.tuples(NAMES, st.sampled_from([*KEYS, FOREIGN, "delete", "recreate"])), min_size=1, max_size=6)
"""The name of an object, and its new key or another change. The changes of a list happen at once."""
TURNS = st.sampled_from([0, 1, 2, 3, 5, 30, 200])
"""How many turns of the loop the informer has before the next step: some end within a list, some at rest."""


class InformerMachine(RuleBasedStateMachine):
    """The informer, its server, and for each key a consumer that looks in each turn and one that looks at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = Collection()
        self.store: Store[View] = Store(by_label)
        self.fast = [self._consumer(key) for key in KEYS]
        self.slow = [self._consumer(key) for key in KEYS]
        self.steps = 0
        pace = InformerConfig(page_objects=2)
        clock = self.server.clock
        self.health = Health("jobs", clock, healthy_after_s=pace.healthy_after_s)
        reflector = Reflector(self.server, Target(JOBS), View, self.store, health=self.health, clock=clock, config=pace)
        self.server.applied_version = lambda: int(reflector._version or 0)
        self.running = self.loop.create_task(reflector.run())

    def _consumer(self, key: str) -> Consumer:
        return Consumer(self.server, self.store, self.store.subscribe(key))

    def _change(self, changes: list[tuple[str, str]]) -> None:
        for name, what in changes:
            if what in ("delete", "recreate"):
                key = self.server.objects[name]["metadata"]["labels"]["key"] if name in self.server.objects else None
                self.server.delete(name)
                if what == "recreate" and key is not None:
                    self.server.put(name, key)
            else:
                self.server.put(name, what)

    def _turns(self, count: int) -> None:
        self.loop.run_until_complete(self._run(count))

    async def _run(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            for consumer in self.fast:
                await consumer.look()

    # -- steps -----------------------------------------------------------------------------------------------

    @rule(changes=CHANGES, turns=TURNS)
    def objects_change(self, changes: list[tuple[str, str]], turns: int) -> None:
        self._change(changes)
        self._turns(turns)

    @rule(changes=CHANGES, turns=TURNS)
    def objects_change_during_an_outage(self, changes: list[tuple[str, str]], turns: int) -> None:
        self.server.cut()
        self._change(changes)
        self._turns(turns)

    @rule(changes=CHANGES, turns=TURNS, cut=st.booleans())
    def objects_change_and_the_server_forgets(self, changes: list[tuple[str, str]], turns: int, cut: bool) -> None:
        if cut:
            self.server.cut()
        self._change(changes)
        self.server.compact()
        self._turns(turns)

    @rule(faults=st.lists(WATCH_FAULTS, min_size=1, max_size=7), cut=st.booleans())
    def watches_fail(self, faults: list[Fault], cut: bool) -> None:
        self.server.watch_faults += faults
        if cut:
            self.server.cut()

    @rule(faults=st.lists(LIST_FAULTS, min_size=1, max_size=4))
    def lists_fail(self, faults: list[Exception]) -> None:
        self.server.list_faults += faults

    @rule(turns=TURNS)
    def time_passes(self, turns: int) -> None:
        self._turns(turns)

    @rule(which=st.sampled_from(range(len(KEYS))))
    def slow_consumer_looks(self, which: int) -> None:
        self.loop.run_until_complete(self.slow[which].look())

    @rule(which=st.sampled_from(range(len(KEYS))))
    def consumer_goes_and_another_comes(self, which: int) -> None:
        self.slow[which].subscription.close()
        self.slow[which] = self._consumer(KEYS[which])

    # -- invariants ------------------------------------------------------------------------------------------

    @invariant()
    def informer_runs(self) -> None:
        self.steps += 1
        if self.running.done():
            self.running.result()

    @invariant()
    def requests_are_few(self) -> None:
        """There are at most 20 requests for each step, and one for each second."""
        assert self.server.requests <= 20 + 20 * self.steps + self.server.now

    @invariant()
    def one_watch_at_a_time(self) -> None:
        statistics = self.health.statistics(self.store)
        assert statistics.watches_open <= 1
        assert statistics.watches_opened == self.server.watches

    def teardown(self) -> None:
        try:
            self.server.list_faults.clear()
            self.server.watch_faults.clear()
            self.loop.run_until_complete(self._converges())
        finally:
            self.running.cancel()
            self.loop.run_until_complete(asyncio.gather(self.running, return_exceptions=True))
            self.loop.close()

    async def _converges(self) -> None:
        for _ in range(TURNS_TO_CONVERGE):
            found = {uid: view for key in KEYS for uid, view in self.store.objects(key).items()}
            if self.store.is_synced and _versions(found) == self.server.versions_of(KEYS):
                break
            await self._run(1)
        else:
            raise AssertionError(f"the store differs from the server after {TURNS_TO_CONVERGE} turns")
        for consumer in [*self.fast, *self.slow]:
            await consumer.look()
            key = consumer.subscription.key
            assert _versions(consumer.known) == self.server.versions_of((key,))
            gone = consumer.newest.keys() - consumer.known.keys()
            assert gone <= consumer.deletions.keys(), "a consumer did not get the deletion of an object"


def _versions(views: dict[str, View]) -> dict[str, Any]:
    return {uid: view.metadata.resource_version for uid, view in views.items()}


InformerMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestInformer = InformerMachine.TestCase
