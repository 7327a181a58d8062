"""Any changes, any faults, in any order: when the faults stop, the informer knows what the server has.

In memory and in virtual time. In the first phase requests fail as drawn; in the second none does, and the
store must be equal to the server's objects within a bounded number of turns. What a consumer pieced together
from updates and deletions alone must be the same.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.errors import Forbidden, Gone, ReplyLost, ServerError, TooManyRequests
from airflow_provider_gangjobs.cluster.informer.health import Health
from airflow_provider_gangjobs.cluster.informer.pace import Pace
from airflow_provider_gangjobs.cluster.informer.reflector import Reflector, Target
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.cluster.pacing import Timing
from airflow_provider_gangjobs.cluster.resources import JOBS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

TURNS_TO_CONVERGE = 2000
KEYS = ("k1", "k2")


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
class Server:
    """A versioned collection with history, which fails the next requests as it was told."""

    now: float = 0.0
    version: int = 1
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    oldest: int = 1
    generation: int = 0
    list_faults: list[Exception] = field(default_factory=list)
    watch_faults: list[Exception | int | str] = field(default_factory=list)
    requests: int = 0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    @property
    def timing(self) -> Timing:
        return Timing(monotonic=lambda: self.now, sleep=self.sleep, random=random.Random(1))

    def commit(self, kind: str, obj: dict[str, Any]) -> None:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        self.history.append((self.version, {"type": kind, "object": {"metadata": metadata}}))
        if kind == "DELETED":
            del self.objects[metadata["name"]]
        else:
            self.objects[metadata["name"]] = {"metadata": metadata}

    def put(self, name: str, key: str) -> None:
        known = self.objects.get(name)
        uid = known["metadata"]["uid"] if known else f"{name}-{self.version}"
        self.commit("MODIFIED" if known else "ADDED", {"metadata": {"name": name, "uid": uid, "labels": {"key": key}}})

    def change(self, changes: list[tuple[str, str | None]]) -> None:
        """All at once: nobody sees the states between."""
        for name, key in changes:
            if key is not None:
                self.put(name, key)
            elif name in self.objects:
                self.commit("DELETED", self.objects[name])

    def compact(self) -> None:
        self.history.clear()
        self.oldest = self.version

    async def list_page(self, *_: Any, limit: int, continue_token: str | None, **__: Any) -> bytes:
        self.requests += 1
        await asyncio.sleep(0)
        if self.list_faults:
            raise self.list_faults.pop(0)
        version, start = map(int, continue_token.split("-")) if continue_token else (self.version, 0)
        if continue_token and version != self.version:
            raise Gone(410, request="")  # this server keeps no snapshots
        names = sorted(self.objects)
        end = start + limit if limit else len(names)
        metadata = {"resourceVersion": str(version), "continue": f"{version}-{end}" if end < len(names) else None}
        return json.dumps({"metadata": metadata, "items": [self.objects[name] for name in names[start:end]]}).encode()

    async def watch(
        self, *_: Any, resource_version: str, on_open: Callable[[], None], **__: Any
    ) -> AsyncGenerator[bytes, None]:
        self.requests += 1
        await asyncio.sleep(0)
        fault = self.watch_faults.pop(0) if self.watch_faults else None
        if isinstance(fault, Exception):
            raise fault
        at = int(resource_version)
        if at < self.oldest:
            raise Gone(410, request="")
        on_open()
        generation, sent, idle = self.generation, 0, 0
        while self.generation == generation and idle < 60:
            if at < self.oldest:
                status = {"kind": "Status", "code": 410, "reason": "Expired"}
                yield json.dumps({"type": "ERROR", "object": status}).encode()
                return
            due = [event for event in self.history if event[0] > at]
            if due:
                if sent == fault:
                    raise ReplyLost("", "")
                at, event = due[0]
                yield json.dumps(event).encode()
                sent += 1
                idle = 0
                continue
            if fault == "bookmark":
                metadata = {"resourceVersion": str(at)}
                yield json.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}}).encode()
                return
            idle += 1
            self.now += 1
            await asyncio.sleep(0)


@dataclass
class Consumer:
    """Keeps what it pieced together from updates and deletions, and never looks at the whole."""

    store: Store[View]
    known: dict[str, View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subscriptions = [self.store.subscribe(key) for key in KEYS]

    def look(self) -> None:
        for subscription in self.subscriptions:
            for uid in subscription.take_deleted():
                if by_label(self.known.get(uid, _NOBODY)) in (None, subscription.key):
                    self.known.pop(uid, None)
        for subscription in self.subscriptions:
            self.known |= subscription.take_updated()


_NOBODY = View(Meta("", "", "", {}))

NAMES = st.sampled_from("abcdefg")
LIST_FAULTS = st.sampled_from([Gone(410, request=""), ServerError(500, request=""), ReplyLost("", "")])
WATCH_FAULTS = st.one_of(
    st.sampled_from(
        [
            Gone(410, request=""),
            ServerError(500, request=""),
            ServerError(504, request="", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}),
            TooManyRequests(429, request="", retry_after_s=3.0),
            ReplyLost("", ""),
            Forbidden(403, request=""),
            "bookmark",
        ]
    ),
    st.integers(0, 3),
)
CHANGES = st.lists(st.tuples(NAMES, st.sampled_from([*KEYS, "other", None])), min_size=1, max_size=6)
"""A name and the key it gets; None deletes it."""
TURNS = st.sampled_from([0, 1, 2, 3, 5, 30])
"""How far the informer comes before the next thing happens: in the midst of a list, or to rest."""
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("changes seen"), CHANGES, TURNS),
        st.tuples(st.just("changes during an outage"), CHANGES, TURNS),
        st.tuples(st.just("changes forgotten"), CHANGES, TURNS),
        st.tuples(st.just("look")),
        st.tuples(st.just("fail list"), LIST_FAULTS),
        st.tuples(st.just("fail watch"), WATCH_FAULTS),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_informer_converges_after_any_faults(operations: list[tuple[Any, ...]]) -> None:
    asyncio.run(_converges(operations))


async def _converges(operations: list[tuple[Any, ...]]) -> None:
    server, store = Server(), Store(by_label)
    consumer = Consumer(store)
    pace = Pace(page_objects=2)
    health = Health("jobs", server.timing, proven_s=pace.proven_s)
    reflector = Reflector(server, Target(JOBS), View, store, health=health, timing=server.timing, pace=pace)
    running = asyncio.create_task(reflector.run())
    try:
        for operation in operations:
            await _apply(operation, server, consumer)
            assert not running.done()
        server.list_faults.clear()
        server.watch_faults.clear()
        await _until_equal(server, store)
        consumer.look()
        assert _versions(consumer.known) == _wanted(server)
        assert server.requests < 50 + 20 * len(operations) + server.now
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _apply(operation: tuple[Any, ...], server: Server, consumer: Consumer) -> None:
    match operation:
        case ("changes seen", changes, turns):
            server.change(changes)
            await _turns(turns)
        case ("changes during an outage", changes, turns):
            server.generation += 1
            server.change(changes)
            await _turns(turns)
        case ("changes forgotten", changes, turns):
            server.change(changes)
            server.compact()
            await _turns(turns)
        case ("look",):
            consumer.look()
        case ("fail list", fault):
            server.list_faults.append(fault)
        case ("fail watch", fault):
            server.watch_faults.append(fault)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _until_equal(server: Server, store: Store[View]) -> None:
    for _ in range(TURNS_TO_CONVERGE):
        found = {uid: view for key in KEYS for uid, view in store.objects(key).items()}
        if store.is_synced and _versions(found) == _wanted(server):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"not equal after {TURNS_TO_CONVERGE} turns")


def _versions(views: dict[str, View]) -> dict[str, str]:
    return {uid: view.metadata.resource_version for uid, view in views.items()}


def _wanted(server: Server) -> dict[str, str]:
    metadata = [obj["metadata"] for obj in server.objects.values()]
    return {m["uid"]: m["resourceVersion"] for m in metadata if m["labels"]["key"] in KEYS}
