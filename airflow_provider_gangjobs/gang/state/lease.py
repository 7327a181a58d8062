"""The Lease in which one process names all gangs of a namespace that it follows. Pure.

Each triggerer has one Lease for each namespace, and writes it every few minutes. So ten thousand gangs that wait cost
as many writes as one gang. A gang is named by four bytes of a hash of its uid, so the names of ten thousand gangs take
54 kB of the 256 KiB that the annotations of an object may have. Two gangs may have the same four bytes. Then a gang
that nobody follows counts as followed, and stays until the other gang has ended.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import ANNOTATION_FOLLOWS, LABEL_INSTALLATION, LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_gangjobs.gang.identity import GangRef

DURATION: Final = timedelta(minutes=12)
"""How long a Lease is valid after it was written. Shorter than the grace of a sweep, and longer than two intervals
between writes."""
GANGS_MAX: Final = 40_000
"""The Lease of a process that follows more gangs has the text `ALL`, which counts as the name of every gang."""
ALL: Final = "*"
_BYTES: Final = 4


@dataclass(frozen=True)
class FollowerLease:
    """What a Lease says."""

    name: str
    resource_version: str
    renewed_at: datetime | None
    """`None` if the Lease has no valid time."""
    gangs: frozenset[bytes] | None
    """Hashes of the uids of the gangs; `None` if the process follows all gangs, or if the names cannot be read."""

    def is_valid(self, now: datetime, *, within: timedelta = DURATION) -> bool:
        """Return whether the Lease was written at most `within` before `now`, by the clock of the API server."""
        return self.renewed_at is not None and now - self.renewed_at <= within

    def names(self, ref: GangRef) -> bool:
        """Return whether the process follows the gang."""
        return self.gangs is None or _hash(ref) in self.gangs


def lease_body(name: str, holder: str, installation: str, refs: Iterable[GangRef], now: datetime) -> dict[str, Any]:
    """Return the Lease of a process, as an object to create and as a merge patch.

    :param holder: The process, for people.
    :param now: The time by the clock of the API server.
    """
    labels = {LABEL_PURPOSE: ObjectPurpose.FOLLOWER.value} | (
        {LABEL_INSTALLATION: installation} if installation else {}
    )
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION_FOLLOWS: _format(refs)}},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(DURATION.total_seconds()),
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def read_lease(stored: Mapping[str, Any]) -> FollowerLease:
    """Read a stored Lease. A Lease that cannot be read names all gangs, so nothing is ended because of it."""
    metadata = stored["metadata"]
    try:
        renewed_at = datetime.fromisoformat(stored["spec"]["renewTime"])
    except (KeyError, TypeError, ValueError):
        renewed_at = None
    return FollowerLease(
        name=metadata["name"],
        resource_version=metadata["resourceVersion"],
        renewed_at=renewed_at,
        gangs=_parse((metadata.get("annotations") or {}).get(ANNOTATION_FOLLOWS)),
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


__all__ = ["DURATION", "FollowerLease", "lease_body", "read_lease"]
