"""Disruption: whether the cluster, and not the program, ended a gang, so that it is submitted again. Pure.

One lost rank ends its gang (kubernetes#142330), so a preemption that costs a plain Job one pod costs a gang all its
work. That must not cost the task one of its retries, which are meant for its own faults. What counts is the cause
that the gang's other ends followed from: taken by something more important, evicted, or lost with its node.
What a person deleted does not count, and neither does a deadline: both were meant.

How many attempts in a row were lost so is kept on the Job of the attempt that follows them. It is set as that is
created, so it is counted once, whoever dies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.outcome.event import Status

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent

DISRUPTION_CODES: Final = frozenset({"Preempted", "Evicted", "NodeLost"})
"""Of the diagnosis: what the gang's first cause was."""


@dataclass(frozen=True)
class Disruption:
    """The end of an attempt that was lost to the cluster."""

    number: int
    """How many attempts in a row were lost so, with this one."""
    allowed: int
    message: str
    """Which rank was taken, how, and from where."""

    @property
    def is_allowed(self) -> bool:
        """Whether it is submitted again without spending a retry."""
        return self.number <= self.allowed

    @property
    def carried_over(self) -> int:
        """What the next attempt has behind it. One that a retry pays for begins anew."""
        return self.number if self.is_allowed else 0

    def __str__(self) -> str:
        return f"{self.message} (disruption {self.number}, {self.allowed} allowed)"


def disruption_of(event: GangEvent, *, allowed: int) -> Disruption | None:
    """What the event tells of a disruption; None if that is not what ended the gang."""
    if event.status is not Status.FAILED or event.reason not in DISRUPTION_CODES:
        return None
    return Disruption(event.disruptions + 1, allowed, event.message)
