"""Leases: which gangs of a namespace other processes follow, and the Lease in which this process says so itself.

Each triggerer has one Lease for each namespace, and writes it every few minutes, and at the look of its sweep after it
has begun to follow a gang. So ten thousand gangs that wait cost as many writes as one gang. A gang is named by four
bytes of a hash of its uid, so the names of ten thousand gangs take 54 kB of the 256 KiB that the annotations of an
object may have. Two gangs may have the same four bytes. Then a gang that nobody follows counts as followed, and stays
until the other gang has ended.

Where the Role does not allow Leases, a sweep asks Airflow about every gang that this process does not follow, and ends
the same gangs later (`gang.state.ownership.GRACE`).

Leases are used, and not one bulk question to Airflow a minute, because of their cost, as measured for 10,000 gangs in
the DAG runs of 20 DAGs (Airflow 3.3.2, one core, SQLite, without HTTP):

| | requests of each triggerer | CPU |
|---|---|---|
| Leases | a write of 54 kB in 5 minutes, or in 1 while gangs begin; at most a list in 1 | 7 ms a write, 3 ms a read |
| questions | 40 a minute, whose answers have 650 kB | 0.8 to 1.1 s of Airflow's API server, 12 ms to read |

With a question about each gang every ten minutes, the CPU is still ten times that of the Leases. A question concerns
one DAG, and names its runs in a URL of at most 64 KiB, so there are at least as many questions as DAGs. An answer names
a mapped task instance `<task>_<index>`, which may also be the name of another task, and a mistake ends a gang. And
`gangjobs tidy --end-unowned` cannot ask Airflow.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import socket
import uuid
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.resources import LEASES
from airflow_provider_gangjobs.gang.identity import FOLLOWERS
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_FOLLOWS,
    LABEL_INSTALLATION,
    LABEL_PURPOSE,
    ObjectPurpose,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef


log = logging.getLogger(__name__)

LOOKS_PER_WRITE: Final = 5
"""A Lease whose process has begun to follow no other gang is written again at the look after so many looks."""
VALID_LOOKS: Final = 7
"""For how many looks of its process a Lease is valid after it was written. One write may fail. The gangs of a process
that was lost count as followed for as long."""
GANGS_MAX: Final = 40_000
"""The Lease of a process that follows more gangs has the text `ALL`, which counts as the name of every gang."""
ALL: Final = "*"
_BYTES: Final = 4
ALLOWED_AGAIN_S: Final = 1800.0
"""For how long Leases are not used after the Role did not allow them. The Role may be changed meanwhile."""
DELETE_AFTER: Final = timedelta(days=1)
"""Leases of processes that ended without deleting them are deleted after this time."""
MISSING_RULE: Final = "apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, list, patch, delete]"


@dataclass(frozen=True)
class FollowerLease:
    """What a Lease says."""

    name: str
    resource_version: str
    renewed_at: datetime | None
    """`None` if the Lease has no valid time."""
    duration: timedelta
    """How long the Lease is valid after it was written."""
    gangs: frozenset[bytes] | None
    """Hashes of the uids of the gangs; `None` if the process follows all gangs, or if the names cannot be read."""
    holder: str = ""
    """The process, for people."""

    def is_valid(self, now: datetime, *, within: timedelta | None = None) -> bool:
        """Return whether the Lease was written at most `within` before `now`, by the clock of the API server.

        :param within: By default the duration of the Lease.
        """
        limit = self.duration if within is None else within
        return self.renewed_at is not None and now - self.renewed_at <= limit

    def names(self, ref: GangRef) -> bool:
        """Return whether the process follows the gang."""
        return self.gangs is None or _hash(ref) in self.gangs


def lease_body(
    name: str, holder: str, installation: str, refs: Iterable[GangRef], now: datetime, duration: timedelta
) -> dict[str, Any]:
    """Return the Lease of a process, as an object to create and as a merge patch.

    :param holder: The process, for people.
    :param now: The time by the clock of the API server.
    :param duration: How long the Lease is valid.
    """
    labels = {LABEL_PURPOSE: ObjectPurpose.FOLLOWER.value} | (
        {LABEL_INSTALLATION: installation} if installation else {}
    )
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION_FOLLOWS: _format(refs)}},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(duration.total_seconds()),
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def read_lease(stored: Mapping[str, Any]) -> FollowerLease:
    """Read a stored Lease. A Lease that cannot be read names all gangs, so nothing is ended because of it."""
    metadata = stored["metadata"]
    try:
        renewed_at = datetime.fromisoformat(stored["spec"]["renewTime"])
        duration = timedelta(seconds=stored["spec"]["leaseDurationSeconds"])
    except (KeyError, TypeError, ValueError):
        renewed_at, duration = None, timedelta()
    return FollowerLease(
        name=metadata["name"],
        resource_version=metadata["resourceVersion"],
        renewed_at=renewed_at,
        duration=duration,
        gangs=_parse((metadata.get("annotations") or {}).get(ANNOTATION_FOLLOWS)),
        holder=str((stored.get("spec") or {}).get("holderIdentity") or ""),
    )


def _format(refs: Iterable[GangRef]) -> str:
    hashes = sorted(set(map(_hash, refs)))
    return ALL if len(hashes) > GANGS_MAX else base64.b64encode(b"".join(hashes)).decode()


def _parse(text: str | None) -> frozenset[bytes] | None:
    if text is None or text == ALL:
        return None
    try:
        packed = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    if len(packed) % _BYTES:
        return None
    return frozenset(packed[start : start + _BYTES] for start in range(0, len(packed), _BYTES))


def _hash(ref: GangRef) -> bytes:
    return zlib.crc32(ref.uid.encode()).to_bytes(_BYTES)


class Leases:
    """The Lease of this process in one namespace, and those of others.

    :param look_every_s: How often the sweep of this process looks at the namespace.
    """

    def __init__(self, namespace: str, installation: str, *, look_every_s: float, clock: Clock) -> None:
        self._namespace = namespace
        self._installation = installation
        self._clock = clock
        self._name = f"gangjobs-follower-{uuid.uuid4().hex[:12]}"
        self._look_every_s = look_every_s
        self._named: frozenset[GangRef] = frozenset()
        self._renewed_at_s: float | None = None
        self._forbidden_at_s: float | None = None

    async def renew(self, client: Client, refs: Collection[GangRef]) -> None:
        """Name the gangs that this process follows, if one is not named, or after `LOOKS_PER_WRITE`.

        A failure is logged. The next call tries again or, if the Role does not allow Leases, a call after
        `ALLOWED_AGAIN_S`.
        """
        now_s = self._clock.monotonic()
        is_due = self._renewed_at_s is None or now_s - self._renewed_at_s >= LOOKS_PER_WRITE * self._look_every_s
        if self._is_forbidden() or not (is_due or not self._named.issuperset(refs)):
            return
        named = frozenset(refs)
        try:
            await self._write(client, named)
        except ClusterError as error:
            self._give_up(error)
        else:
            self._renewed_at_s, self._named = now_s, named

    async def _write(self, client: Client, refs: Iterable[GangRef]) -> None:
        if not client.server_clock.is_known:  # the time of this machine is not used, so a response is needed
            await read_leases(client, self._namespace)
        holder = f"{socket.gethostname()}/{os.getpid()}"
        duration = timedelta(seconds=VALID_LOOKS * self._look_every_s)
        body = lease_body(self._name, holder, self._installation, refs, client.server_clock.now(), duration)
        try:
            await client.patch(LEASES, self._name, self._namespace, body)
        except NotFound:
            await client.create(LEASES, body, self._namespace)

    async def others(self, client: Client) -> Callable[[GangRef], bool] | None:
        """Return a function that says whether another process follows a gang; `None` if the Leases cannot be read."""
        if self._is_forbidden():
            return None
        try:
            leases = await read_leases(client, self._namespace)
            await self._delete_old(client, leases)
        except ClusterError as error:
            self._give_up(error)
            return None
        return followed_by((lease for lease in leases if lease.name != self._name), client.server_clock.now())

    async def delete(self, client: Client) -> None:
        """Delete the Lease of this process. A Lease that cannot be deleted expires."""
        if self._renewed_at_s is None:
            return
        self._renewed_at_s = None
        try:
            await client.delete(LEASES, self._name, self._namespace)
        except ClusterError as error:
            log.debug("Lease %s/%s was not deleted: %s", self._namespace, self._name, error)

    async def _delete_old(self, client: Client, leases: Iterable[FollowerLease]) -> None:
        now = client.server_clock.now()
        for lease in leases:
            if not lease.is_valid(now, within=DELETE_AFTER):
                try:
                    await client.delete(LEASES, lease.name, self._namespace, resource_version=lease.resource_version)
                except (NotFound, Conflict):
                    continue

    def _is_forbidden(self) -> bool:
        since_s = self._forbidden_at_s
        return since_s is not None and self._clock.monotonic() - since_s < ALLOWED_AGAIN_S

    def _give_up(self, error: ClusterError) -> None:
        if not isinstance(error, Forbidden):
            log.warning("The Leases of namespace %s could not be used: %s", self._namespace, error)
            return
        self._forbidden_at_s = self._clock.monotonic()
        log.warning(
            "The Role of namespace %s does not allow Leases, so Airflow is asked about more gangs. Add the rule: %s",
            self._namespace,
            MISSING_RULE,
        )


def followed_by(
    leases: Iterable[FollowerLease], now: datetime, *, within: timedelta | None = None
) -> Callable[[GangRef], bool]:
    """Return a function that says whether a process follows a gang, by the Leases that are valid; see `is_valid`."""
    valid = [lease for lease in leases if lease.is_valid(now, within=within)]
    return lambda ref: any(lease.names(ref) for lease in valid)


async def read_leases(client: Client, namespace: str | None) -> list[FollowerLease]:
    """Return the Leases of all processes that follow gangs in a namespace, or in the cluster if it is None.

    Raises:
        ClusterError: they could not be listed.
    """
    return [read_lease(stored) for stored in await client.list(LEASES, namespace, label_selector=FOLLOWERS)]
