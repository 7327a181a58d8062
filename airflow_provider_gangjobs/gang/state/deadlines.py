"""Deadlines: three absolute ones, each for a phase that nothing in the cluster bounds.

The server has no time limit for a gang that is never admitted or never fits. All three count from
the server's own times, so a restarted observer neither extends nor shortens them. A gang whose
fate is decided has none: it is about to end anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.phase import Phase

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.observation import Observation


@dataclass(frozen=True)
class Deadlines:
    """How long each phase may take, in seconds; `None` is without limit."""

    queue_s: float | None = None
    """From the Job's creation, or from when a queue suspended it again."""
    assemble_s: float | None = None
    """From when the Job was unsuspended."""
    run_s: float | None = None
    """From when the last rank started."""


@dataclass(frozen=True)
class Exceeded:
    """A deadline that has passed."""

    phase: Phase
    """`queued`, `assembling` or `running`."""
    seconds: float
    """What was allowed."""


_BOUND_BY: Final = {
    Phase.SUBMITTED: Phase.QUEUED,
    Phase.QUEUED: Phase.QUEUED,
    Phase.ASSEMBLING: Phase.ASSEMBLING,
    Phase.RUNNING: Phase.RUNNING,
}


def allowed_s(phase: Phase, deadlines: Deadlines) -> float | None:
    """What a phase may take, in seconds; `None` is without limit."""
    by_phase = {
        Phase.QUEUED: deadlines.queue_s,
        Phase.ASSEMBLING: deadlines.assemble_s,
        Phase.RUNNING: deadlines.run_s,
    }
    return by_phase.get(phase)


def next_deadline(observation: Observation, deadlines: Deadlines) -> datetime | None:
    """When the present phase must be over, or `None` if it may last."""
    bound = _BOUND_BY.get(observation.phase)
    since = observation.since
    allowed = allowed_s(bound, deadlines) if bound else None
    return since + timedelta(seconds=allowed) if since and allowed is not None else None


def deadline_exceeded(observation: Observation, deadlines: Deadlines, now: datetime) -> Exceeded | None:
    """The deadline that has passed at `now`, if any."""
    due = next_deadline(observation, deadlines)
    if due is None or now < due:
        return None
    phase = _BOUND_BY[observation.phase]
    allowed = allowed_s(phase, deadlines)
    assert allowed is not None, "a deadline was computed from it"
    return Exceeded(phase, allowed)
