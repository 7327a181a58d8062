"""HarvestSchedule: when a harvester records, when it releases, and when it leaves the API server to the pods.

Each release is a write, a seventh of what a pod costs the server in all, and nobody waits for it unless the pod is
being deleted. So releases come last: while pods end there is a trickle, which is as slow as the server's answers,
and once no more have ended for a moment the rest goes at full speed. Pure: it reads no clock and keeps three times.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

CALM_AFTER_S: Final = 3.0
"""Without a pod that ended: by then the Job controller has counted them, and its own writes are done."""
RECORD_PAUSE_PER_POD_S: Final = 2e-3
RECORD_PAUSE_MAX_S: Final = 2.0
"""Between two records. To add to a ConfigMap costs the API server more the more is in it (it merges the whole), so a
large gang's outcomes are written in larger and fewer parts."""
TRICKLE_PODS: Final = 2
"""Released at once while pods end."""
TRICKLE_REST: Final = 60.0
"""Then nothing is released for so many times the answer time: six a second of a server that answers in 5 ms, and not
one a second of one that is busy and takes 50 ms. With a rest of 3 a gang of 5,000 completed in 1.3 times its time,
with this it is 1.02 for 2,500 (benchmarks/harvest.py)."""
TRICKLE_REST_MIN_S: Final = 0.005
HELD_MAX: Final = 10_000
"""Pods that are recorded and still held, some 10 MB. Above it they are released however busy the server is."""


class Step(Enum):
    """What a harvester does next."""

    WAIT = auto()
    RECORD = auto()
    RELEASE_AWAITED = auto()
    TRICKLE = auto()
    DRAIN = auto()


@dataclass
class HarvestSchedule:
    """The times of one harvester, in seconds of its monotonic clock."""

    _calm_at: float = 0.0
    _record_at: float = 0.0
    _trickle_at: float = 0.0

    def pods_ended(self, now: float) -> None:
        self._calm_at = now + CALM_AFTER_S

    def recorded(self, now: float, pods: int) -> None:
        """:param pods: How many are in the ledger by now."""
        self._record_at = now + min(pods * RECORD_PAUSE_PER_POD_S, RECORD_PAUSE_MAX_S)

    def trickled(self, now: float, took_s: float) -> None:
        self._trickle_at = now + max(TRICKLE_REST * took_s, TRICKLE_REST_MIN_S)

    def next(self, now: float, *, due: int, awaited: int, held: int) -> tuple[Step, float | None]:
        """The next step, and how long to wait for it at most (`None`: until there is something to do).

        :param due: Pods to record.
        :param awaited: Recorded pods that somebody deleted.
        :param held: The other recorded pods.
        """
        if awaited:
            return Step.RELEASE_AWAITED, 0.0
        if due and now >= self._record_at:
            return Step.RECORD, 0.0
        if held and (now >= self._calm_at or held > HELD_MAX):
            return Step.DRAIN, 0.0
        if held and now >= self._trickle_at:
            return Step.TRICKLE, 0.0
        times = [self._record_at] * bool(due) + [self._calm_at, self._trickle_at] * bool(held)
        return Step.WAIT, min(times) - now if times else None
