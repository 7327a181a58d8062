"""Ledger: the outcomes of a gang's pods in ConfigMaps that the Job owns, keyed by pod uid.

Writing an entry twice changes nothing, so any number of harvesters may write at once and any of
them may die anywhere. An entry is a merge patch of its own keys; nothing that is there is rewritten.
A ConfigMap holds 1 MiB, so there are several (`<job>-ledger-<n>`), filled one after the other. Two
harvesters may put the same pod into different ones: readers take one entry per uid.

The ledger lives as long as its Job. When the Job is gone there is nothing to record into (an owned
ConfigMap would be collected at once, an unowned one by nobody): outcomes then go into the event only.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.cluster.clock import Slices
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
from airflow_provider_gangjobs.cluster.http.options import ResponseFormat
from airflow_provider_gangjobs.cluster.loop_local import of_running_loop
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.labels import LABEL_GANG, LABEL_JOB_UID, LABEL_ROLE, Role
from airflow_provider_gangjobs.gang.outcome.outcomes import Ending, Outcome
from airflow_provider_gangjobs.gang.selectors import ledger_selector

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

    Tell = Callable[[Sequence[Outcome]], None]

SHARD_BYTES_MAX: Final = 700 * 1024
"""Keys and values of one ConfigMap. The rest of its 1 MiB is for managedFields, some 50 bytes an entry."""
SHARDS_PER_PAGE: Final = 5
"""A page of full shards is 3.5 MB, read in 10 ms."""
SHARDS_MAX: Final = 1000
"""100,000 pods with the longest messages need 650."""
WRITE_ATTEMPTS_MAX: Final = 4
"""Each answers a change by another harvester or a person: created, deleted, replaced, filled up."""


def selector(ref: GangRef) -> str:
    """Label selector of a gang's ledger."""
    return ledger_selector(ref.name, ref.uid)


def encode(outcome: Outcome) -> str:
    """One entry: compact JSON without empty fields. A result can be 4 KiB, the rest is about 300 bytes."""
    return msgspec.json.encode(outcome).decode()


def decode(uid: str, text: str) -> Outcome:
    """Read an entry of this or an earlier version; one of a later version that cannot be read is `unknown`."""
    try:
        return msgspec.json.decode(text, type=Outcome)
    except msgspec.MsgspecError as exc:
        return Outcome(uid=uid, pod="", outcome=Ending.UNKNOWN, reason="LedgerEntryUnreadable", message=str(exc))


async def read_ledger(client: Client, ref: GangRef, *, shards_max: int | None = None) -> list[Outcome]:
    """Every recorded outcome, one per pod, in no order. Empty if nothing was recorded or the Job is gone.

    :param shards_max: Read no more ConfigMaps than these, the earliest ones for up to ten.

    Raises:
        ClusterError: it could not be read; that is not an empty ledger.
    """
    found: dict[str, Outcome] = {}
    async with aclosing(_shards(client, ref, per_page=min(shards_max or SHARDS_PER_PAGE, SHARDS_PER_PAGE))) as shards:
        number = 0
        async for shard in shards:
            _collect(shard, found)
            number += 1
            if number == shards_max:
                break
    return list(found.values())


async def _shards(
    client: Client, ref: GangRef, *, per_page: int = SHARDS_PER_PAGE
) -> AsyncGenerator[dict[str, Any], None]:
    pages = client.list_pages(CONFIGMAPS, ref.namespace, label_selector=selector(ref), limit=per_page)
    async with aclosing(pages):
        async for page in pages:
            for shard in page:
                yield shard


def _collect(shard: Mapping[str, Any], found: dict[str, Outcome]) -> None:
    for uid, text in _data(shard).items():
        if uid not in found:
            found[uid] = decode(uid, text)


def _data(shard: Mapping[str, Any]) -> dict[str, str]:
    return shard.get("data") or {}


def _entry_bytes(uid: str, text: str) -> int:
    return len(uid) + len(text.encode())


@dataclass(frozen=True)
class _Shard:
    """The ConfigMap that is filled now. Without a uid it is not known to exist."""

    number: int = 0
    uid: str = ""
    filled_bytes: int = 0


def _to_nobody(_: Sequence[Outcome]) -> None: ...


class Ledger:
    """Writes the ledger of one gang. If there is one it is read first: a harvester goes on where another stopped."""

    def __init__(self, client: Client, ref: GangRef, *, shard_bytes_max: int = SHARD_BYTES_MAX) -> None:
        self._client = client
        self.ref = ref
        self._shard_bytes_max = shard_bytes_max
        self._recorded: dict[str, None] | None = None
        """As a set: garbage is looked for in each set of so many, and in no dict of nothing but strings."""
        self._shard = _Shard()

    @property
    def recorded(self) -> AbstractSet[str]:
        """UIDs of the pods whose outcome is known to be stored. Empty before the first `load`."""
        return self._recorded.keys() if self._recorded is not None else frozenset()

    async def begin(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Store as many of these as fit, unless something is recorded already. Which ones were stored.

        Most gangs are recorded once, by one harvester: it need not read what is not there. If the creation succeeds
        nothing was, and otherwise `record` looks what is.

        Raises:
            ClusterError: it is not known whether they are stored.
        """
        entries = {outcome.uid: outcome for outcome in outcomes} if self._recorded is None else {}
        if not entries:
            return []
        part = self._fitting({uid: encode(outcome) for uid, outcome in entries.items()})
        try:
            stored = await self._client.create(
                CONFIGMAPS, self._manifest(part), self.ref.namespace, response_format=ResponseFormat.METADATA
            )
        except (AlreadyExists, TooLarge, Invalid):
            return []
        self._fill(stored, part)
        self._recorded = dict.fromkeys(part)
        return [entries[uid] for uid in part]

    async def load(self, tell: Tell = _to_nobody) -> None:
        """Read what is recorded, if that was not done yet.

        Raises:
            ClusterError: it could not be read.
        """
        if self._recorded is None:
            await self.refresh(tell)

    async def refresh(self, tell: Tell = _to_nobody) -> None:
        """Read what is recorded by now, also by others.

        :param tell: Given each outcome once, those of a ConfigMap together: all of a large gang's are 50 MB.

        Raises:
            ClusterError: it could not be read, or not to its end.
        """
        found: dict[str, None] = {}
        slices = of_running_loop(Slices)
        async with aclosing(_shards(self._client, self.ref)) as shards:
            async for shard in shards:
                new = {uid: text for uid, text in _data(shard).items() if uid not in found}
                tell([decode(uid, text) for uid, text in new.items()])
                found |= dict.fromkeys(new)
                seen = self._seen(shard)
                self._shard = seen if seen.number >= self._shard.number else self._shard
                await slices.breathe()
        self._recorded = found | (self._recorded or {})

    async def record(self, outcomes: Iterable[Outcome]) -> None:
        """On return every outcome is stored. Safe to repeat, also after an error.

        Raises:
            ClusterError, LedgerUnavailable: some may not be stored, so no pod of them may be released.
        """
        await self.load()
        assert self._recorded is not None, "it was loaded"
        entries = {outcome.uid: encode(outcome) for outcome in outcomes if outcome.uid not in self._recorded}
        while entries:
            part = self._fitting(entries)
            await self._store(part)
            self._recorded |= dict.fromkeys(part)
            entries = {uid: text for uid, text in entries.items() if uid not in part}

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
            raise LedgerUnavailable(str(self.ref), f"its ledger has {SHARDS_MAX} ConfigMaps, more are not made")
        self._shard = _Shard(self._shard.number + 1)

    async def _store(self, part: Mapping[str, str]) -> None:
        """Patch the shard or create it, and go to the next one while this one is full or not ours."""
        name = ""
        for _ in range(WRITE_ATTEMPTS_MAX):
            name = self._name
            try:
                stored = await self._write(part)
            except (TooLarge, Invalid, Conflict, NotFound) as exc:
                if _is_too_large(exc):
                    self._next_shard()
                elif isinstance(exc, NotFound) or is_of_another_uid(exc):
                    # Deleted or replaced since it was seen.
                    self._shard = _Shard(self._shard.number)
                elif not isinstance(exc, Conflict):
                    raise
            else:
                if self._is_ours(stored):
                    self._fill(stored, part)
                    return
                # Left by an earlier Job of this name, or somebody else's: it is not ours to write to.
                self._next_shard()
        raise LedgerUnavailable(str(self.ref), f"ConfigMap {self.ref.namespace}/{name} keeps changing")

    def _fill(self, stored: Mapping[str, Any], part: Mapping[str, str]) -> None:
        """Others may have added to it, which nobody told: the server says when it is full."""
        filled_bytes = self._shard.filled_bytes + sum(_entry_bytes(*entry) for entry in part.items())
        self._shard = _Shard(self._shard.number, stored["metadata"]["uid"], filled_bytes)

    async def _write(self, part: Mapping[str, str]) -> dict[str, Any]:
        """The metadata of what is stored now. Its data, up to 1 MiB, is not sent back."""
        if not self._shard.uid:
            try:
                manifest = self._manifest(part)
                return await self._client.create(
                    CONFIGMAPS, manifest, self.ref.namespace, response_format=ResponseFormat.METADATA
                )
            except AlreadyExists:
                there = await self._client.get(CONFIGMAPS, self._name, self.ref.namespace)
                if not self._is_ours(there):
                    return there
                self._shard = self._seen(there)
        patch = {"metadata": {"uid": self._shard.uid}, "data": dict(part)}
        return await self._client.patch(
            CONFIGMAPS, self._name, self.ref.namespace, patch, response_format=ResponseFormat.METADATA
        )

    def _seen(self, shard: Mapping[str, Any]) -> _Shard:
        number = int(shard["metadata"]["name"].rpartition("-")[2])
        filled_bytes = sum(_entry_bytes(uid, text) for uid, text in _data(shard).items())
        return _Shard(number, shard["metadata"]["uid"], filled_bytes)

    @property
    def _name(self) -> str:
        return f"{self.ref.name}-ledger-{self._shard.number}"

    def _is_ours(self, shard: Mapping[str, Any]) -> bool:
        meta = shard["metadata"]
        ours = (meta.get("labels") or {}).get(LABEL_JOB_UID) == self.ref.uid
        return ours and meta.get("deletionTimestamp") is None

    def _manifest(self, data: Mapping[str, str]) -> dict[str, Any]:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.ref.name, "uid": self.ref.uid}
        labels = {LABEL_GANG: self.ref.name, LABEL_ROLE: str(Role.LEDGER), LABEL_JOB_UID: self.ref.uid}
        meta = {
            "name": self._name,
            "namespace": self.ref.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        }
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(data)}


def _is_too_large(error: ApiError) -> bool:
    """413 for the request, or 422 with the cause FieldValueTooLong for the ConfigMap."""
    return isinstance(error, TooLarge) or "FieldValueTooLong" in error.causes()


def is_namespace_ending(error: Exception) -> bool:
    """The namespace is being deleted: nothing can be created in it any more, and its pods wait for us to let go."""
    return isinstance(error, Forbidden) and "NamespaceTerminating" in error.causes()
