"""Statistics: what all sweeps of one event loop have done, for metrics."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.state.ownership import SweepAction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_gangjobs.sweeping.actions import SweptGang


class SweepCounter(StrEnum):
    """The counters. None of them ever decreases."""

    LOOKS = "looks"
    """Looks at all gangs of a namespace."""
    ENDED = "ended"
    """Live gangs that were ended, because their tasks had ended."""
    RELEASED = "released"
    """Gangs whose held pods were released."""
    DELETED = "deleted"
    """Delivered Jobs that were deleted by their policy."""
    DELIVERED = "delivered"
    """Gangs that were marked as delivered, because Airflow had accepted the success of their tasks."""
    FINISHED = "finished"
    """Suspended Jobs of halted gangs that were made to fail."""
    FORGOTTEN = "forgotten"
    """Gangs that had ended and that the informers dropped from memory."""
    FAILURES = "failures"
    """Actions and looks that met an error, and are repeated."""


_BY_ACTION: Final = {
    SweepAction.DELETE_LIVE: SweepCounter.ENDED,
    SweepAction.RELEASE: SweepCounter.RELEASED,
    SweepAction.DELETE_DELIVERED: SweepCounter.DELETED,
    SweepAction.MARK_DELIVERED: SweepCounter.DELIVERED,
    SweepAction.FINISH: SweepCounter.FINISHED,
}


def sweep_totals() -> SweepTotals:
    """Return the totals of the running loop."""
    return loop_local(SweepTotals)


class SweepTotals:
    """The counters of all sweeps of one event loop, also of those that are over."""

    def __init__(self) -> None:
        self._counts: Counter[SweepCounter] = Counter()

    def count(self, counter: SweepCounter) -> None:
        """Add one to a counter."""
        self._counts[counter] += 1

    def count_swept(self, swept: Iterable[SweptGang]) -> None:
        """Count what a look has done."""
        for each in swept:
            self.count(SweepCounter.FAILURES if each.error else _BY_ACTION[each.decision.action])

    def statistics(self) -> dict[str, int]:
        """Return all counters by name."""
        return {counter.value: self._counts[counter] for counter in SweepCounter}


__all__ = ["SweepCounter", "SweepTotals", "sweep_totals"]
