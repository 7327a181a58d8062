"""Ledger: the outcomes of a gang's pods, in ConfigMaps that the Job owns, keyed by pod uid.

Writing an entry twice changes nothing, so any number of processes may write at once and each may die anywhere. An entry
is a merge patch of its own keys, and existing entries are not rewritten. To add an entry, the API server reads and
writes the whole ConfigMap, so a large ledger has several small ones (`<job>-ledger-<n>`), filled one after the other.
Two processes may write the same pod to different ConfigMaps; readers take one entry for each uid.

The ledger exists as long as its Job. Without the Job nothing can be recorded: an owned ConfigMap would be deleted at
once, and an unowned one would never be deleted. Then outcomes are only in the event.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooLarge,
    is_of_another_uid,
)
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.identity import ledger_selector, owned_by
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS
from airflow_provider_gangjobs.kube.views import JSON_ERRORS, parse_number
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG, LABEL_JOB_UID, LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

    OnOutcomes = Callable[[Sequence[Outcome]], None]

SHARD_BYTES_MAX: Final = 128 * 1024
"""Keys and values of one ConfigMap: some 300 entries. A patch costs the API server 20 ms of CPU if the ConfigMap has so
many bytes, and 115 ms if it has 680 KB (Kubernetes 1.36)."""
SHARDS_PER_PAGE: Final = 25
"""A page of full shards is 3.2 MB, read in 10 ms."""
SHARDS_MAX: Final = 5000
"""100,000 pods with the longest messages need 3,600."""
SAMPLE_SHARDS: Final = 5
"""How many ConfigMaps of a large gang are read to show some of its outcomes, some fifteen hundred."""
WRITE_ATTEMPTS_MAX: Final = 4
"""Each attempt reacts to a change by another writer: the ConfigMap was created, deleted, replaced or filled."""


def encode(outcome: Outcome) -> str:
    """Return one entry: compact JSON without empty fields. A result can be 4 KiB, the rest is about 300 bytes."""
    return msgspec.json.encode(outcome).decode()


def decode(uid: str, text: str) -> Outcome:
    """Read an entry of this or an earlier version. An entry of a later version that cannot be read is `unknown`."""
    try:
        return msgspec.json.decode(text, type=Outcome)
    except JSON_ERRORS as exc:
        return Outcome(uid=uid, pod="", outcome=OutcomeKind.UNKNOWN, reason="LedgerEntryUnreadable", message=str(exc))


async def read_ledger(client: Client, ref: GangRef, *, is_sample: bool = False) -> list[Outcome]:
    """Return all recorded outcomes, one for each pod, in no order. Empty if nothing was recorded or the Job is gone.

    :param is_sample: Read at most `SAMPLE_SHARDS` ConfigMaps, the earliest ones if there are at most ten.

    Raises:
        ClusterError: The ledger could not be read, which does not mean that it is empty.
    """
    found: dict[str, Outcome] = {}
    per_page = SAMPLE_SHARDS if is_sample else SHARDS_PER_PAGE
    async with aclosing(_shard_pages(client, ref, per_page)) as pages:
        async for page in pages:
            for _, shard in page:
                found |= {uid: decode(uid, text) for uid, text in _data(shard).items() if uid not in found}
            if is_sample:
                break
    return list(found.values())


async def _shard_pages(
    client: Client, ref: GangRef, per_page: int
) -> AsyncGenerator[list[tuple[int, dict[str, Any]]], None]:
    """Yield the ConfigMaps of the ledger with the numbers in their names.

    A ConfigMap with another name, such as a copy of one of them, is left out.
    """
    selector = ledger_selector(ref.name, ref.uid)
    listed = client.list_views(dict[str, Any], CONFIGMAPS, ref.namespace, label_selector=selector, limit=per_page)
    async with aclosing(listed) as pages:
        async for page in pages:
            yield [(number, shard) for shard in page if (number := _number_of(ref, shard)) is not None]


def _number_of(ref: GangRef, shard: Mapping[str, Any]) -> int | None:
    start, _, number = shard["metadata"]["name"].rpartition("-")
    return parse_number(number) if start == f"{ref.name}-ledger" else None


def _data(shard: Mapping[str, Any]) -> dict[str, str]:
    return shard.get("data") or {}


def _entry_bytes(uid: str, text: str) -> int:
    return len(uid) + len(text.encode())


class _Shard(Struct, frozen=True):
    """The ConfigMap that is being filled. Without a uid it is not known to exist."""

    number: int = 0
    uid: str = ""
    filled_bytes: int = 0


def _seen(number: int, shard: Mapping[str, Any]) -> _Shard:
    filled_bytes = sum(_entry_bytes(uid, text) for uid, text in _data(shard).items())
    return _Shard(number, shard["metadata"]["uid"], filled_bytes)


def _ignore(_: Sequence[Outcome]) -> None: ...


class Ledger:
    """Writes the ledger of one gang. An existing ledger is read first, to continue where another writer stopped."""

    def __init__(self, client: Client, ref: GangRef, *, shard_bytes_max: int = SHARD_BYTES_MAX) -> None:
        self._client = client
        self.ref = ref
        self._shard_bytes_max = shard_bytes_max
        self._recorded: dict[str, None] | None = None
        """Used as a set. The garbage collector scans a large set, but not a dict that has only strings."""
        self._shard = _Shard()
        self.is_first_recorder = False
        """No other process had recorded an outcome when this object recorded its first one."""

    @property
    def recorded(self) -> AbstractSet[str]:
        """UIDs of the pods whose outcome is known to be stored. Empty before the first `load`."""
        return self._recorded.keys() if self._recorded is not None else frozenset()

    async def load(self, on_read: OnOutcomes = _ignore) -> None:
        """Read what is recorded, unless that was done before.

        Raises:
            ClusterError: it could not be read.
        """
        if self._recorded is None:
            await self.refresh(on_read)

    async def refresh(self, on_read: OnOutcomes = _ignore) -> None:
        """Read what is recorded now, also by others.

        :param on_read: Called with the outcomes of one ConfigMap at a time, each outcome once: a large gang has 50 MB.

        Raises:
            ClusterError: The ledger could not be read to its end.
        """
        found: dict[str, None] = {}
        time_slice = loop_local(TimeSlice)
        async with aclosing(_shard_pages(self._client, self.ref, SHARDS_PER_PAGE)) as pages:
            async for number, shard in (numbered async for page in pages for numbered in page):
                new = {uid: text for uid, text in _data(shard).items() if uid not in found}
                on_read([decode(uid, text) for uid, text in new.items()])
                found |= dict.fromkeys(new)
                seen = _seen(number, shard)
                self._shard = seen if seen.number >= self._shard.number else self._shard
                await time_slice.yield_if_due()
        self._recorded = found | (self._recorded or {})

    async def record(
        self, outcomes: Iterable[Outcome], on_read: OnOutcomes = _ignore, on_stored: OnOutcomes = _ignore
    ) -> None:
        """Store all outcomes. Safe to repeat, also after an error.

        Most gangs have one harvester, which need not read a ledger that does not exist. So the ledger is created if it
        was not read, and read if it exists.

        :param on_read: Called with what is read, if the ledger was not read before. See `refresh`.
        :param on_stored: Called with outcomes when they are stored.

        Raises:
            ClusterError, LedgerUnavailable: Some outcomes may not be stored, so their pods may not be released.
        """
        new = {outcome.uid: outcome for outcome in outcomes if outcome.uid not in self.recorded}
        entries = {uid: encode(outcome) for uid, outcome in new.items()}
        if entries and self._recorded is None:
            part = self._fitting(entries)
            with suppress(AlreadyExists, TooLarge, Invalid):
                self._fill(await self._create(part), part)
                self._recorded = dict.fromkeys(part)
                on_stored([new[uid] for uid in part])
        await self.load(on_read)
        assert self._recorded is not None, "it was loaded"
        while entries := {uid: text for uid, text in entries.items() if uid not in self.recorded}:
            part = self._fitting(entries)
            await self._store(part)
            self._recorded |= dict.fromkeys(part)
            on_stored([new[uid] for uid in part])

    def _fitting(self, entries: Mapping[str, str]) -> dict[str, str]:
        """The entries that the present shard has room for; of an empty shard, one at least."""
        part: dict[str, str] = {}
        room = self._shard_bytes_max - self._shard.filled_bytes
        for uid, text in entries.items():
            room -= _entry_bytes(uid, text)
            if room < 0 and (part or self._shard.filled_bytes):
                break
            part[uid] = text
        if part:
            return part
        self._next_shard()
        return self._fitting(entries)

    def _next_shard(self) -> None:
        if self._shard.number + 1 >= SHARDS_MAX:
            raise exceptions.LedgerUnavailable(
                str(self.ref), f"its ledger has {SHARDS_MAX} ConfigMaps, more are not made"
            )
        self._shard = _Shard(self._shard.number + 1)

    async def _store(self, part: Mapping[str, str]) -> None:
        """Patch or create the ConfigMap, and use the next one if this one is full or belongs to somebody else."""
        name = ""
        for _ in range(WRITE_ATTEMPTS_MAX):
            name = self._name
            try:
                stored = await self._write(part)
            except (TooLarge, Invalid, Conflict, NotFound) as exc:
                if _is_too_large(exc):
                    self._next_shard()
                elif isinstance(exc, NotFound) or is_of_another_uid(exc):
                    # The ConfigMap was deleted or replaced since it was read.
                    self._shard = _Shard(self._shard.number)
                elif not isinstance(exc, Conflict):
                    raise
            else:
                if self._is_ours(stored):
                    self._fill(stored, part)
                    return
                # The ConfigMap belongs to an earlier Job of this name, or to somebody else.
                self._next_shard()
        raise exceptions.LedgerUnavailable(str(self.ref), f"ConfigMap {self.ref.namespace}/{name} keeps changing")

    def _fill(self, stored: Mapping[str, Any], part: Mapping[str, str]) -> None:
        """Add up the bytes that this process wrote. Other writers are not counted; the server says when it is full."""
        filled_bytes = self._shard.filled_bytes + sum(_entry_bytes(*entry) for entry in part.items())
        self._shard = _Shard(self._shard.number, stored["metadata"]["uid"], filled_bytes)

    async def _write(self, part: Mapping[str, str]) -> dict[str, Any]:
        """Write, and return the metadata of the ConfigMap. Its data, up to 1 MiB, is not sent back."""
        if not self._shard.uid:
            try:
                return await self._create(part)
            except AlreadyExists:
                there = await self._client.get(CONFIGMAPS, self._name, self.ref.namespace)
                if not self._is_ours(there):
                    return there
                self._shard = _seen(self._shard.number, there)
        patch = {"metadata": {"uid": self._shard.uid}, "data": dict(part)}
        return await self._client.patch(CONFIGMAPS, self._name, self.ref.namespace, patch, returns_metadata=True)

    @property
    def _name(self) -> str:
        return f"{self.ref.name}-ledger-{self._shard.number}"

    def _is_ours(self, shard: Mapping[str, Any]) -> bool:
        meta = shard["metadata"]
        ours = (meta.get("labels") or {}).get(LABEL_JOB_UID) == self.ref.uid
        return ours and meta.get("deletionTimestamp") is None

    async def _create(self, data: Mapping[str, str]) -> dict[str, Any]:
        labels = {LABEL_GANG: self.ref.name, LABEL_PURPOSE: str(ObjectPurpose.LEDGER), LABEL_JOB_UID: self.ref.uid}
        meta = {
            "name": self._name,
            "namespace": self.ref.namespace,
            "labels": labels,
            "ownerReferences": [owned_by("batch/v1", "Job", self.ref.name, self.ref.uid)],
        }
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(data)}
        stored = await self._client.create(CONFIGMAPS, manifest, self.ref.namespace, returns_metadata=True)
        self.is_first_recorder = self.is_first_recorder or self._shard.number == 0
        return stored


def _is_too_large(error: ApiError) -> bool:
    """413 for the request, or 422 with the cause FieldValueTooLong for the ConfigMap."""
    return isinstance(error, TooLarge) or "FieldValueTooLong" in error.causes()


def is_namespace_ending(error: Exception) -> bool:
    """Whether the namespace is being deleted: nothing can be created in it, and its pods wait to be released."""
    return isinstance(error, Forbidden) and "NamespaceTerminating" in error.causes()
