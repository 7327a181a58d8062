"""A collection of a model API server, in memory and in virtual time: versions, history, pages, watches, and faults.

The faults are those of servers, proxies and networks. The events of one watch are always in order, and DELETED never
comes twice, because the watch of an API server is one stream of revisions of etcd.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import Gone, ReplyLost

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
