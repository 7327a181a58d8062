"""Disruption: decides whether the cluster, and not the program, ended a gang, so the task submits the gang again. Pure.

One lost rank ends its gang (kubernetes#142330). The root cause of a disruption is a rank that was
preempted, evicted, or lost with its node. A deletion by a person and a deadline are intended, so they do not count.

The Job of the next attempt stores the number of consecutive disruptions from its creation on, so each is counted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.outcome.event import Status

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent

DISRUPTION_CODES: Final = frozenset({"Preempted", "Evicted", "NodeLost"})
"""Codes of diagnoses that name a disruption as the root cause."""


class Disruption(Struct, frozen=True):
    """The disruption that ended an attempt."""

    number: int
    """Number of consecutive attempts that ended by a disruption, including this attempt."""
    allowed: int
    message: str
    """Summary of the diagnosis: the rank, the kind of the disruption, and the node."""

    @property
    def is_allowed(self) -> bool:
        """The task submits the gang again without using a retry."""
        return self.number <= self.allowed

    @property
    def carried_over(self) -> int:
        """Number of disruptions that the next attempt stores. After a retry of the task the count starts again."""
        return self.number if self.is_allowed else 0

    def __str__(self) -> str:
        return f"{self.message} (disruption {self.number}, {self.allowed} allowed)"


def disruption_of(event: GangEvent, *, allowed: int) -> Disruption | None:
    """Return the disruption that ended the gang; `None` if the gang ended by another cause."""
    if event.status is not Status.FAILED or event.reason not in DISRUPTION_CODES:
        return None
    return Disruption(event.disruptions + 1, allowed, event.message)
