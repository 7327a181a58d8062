"""Deadlines: three limits, each for a phase that the cluster does not limit.

Kubernetes has no time limit for a gang that is never admitted or never fits. All three deadlines count from times of
the API server, so the restart of a triggerer does not change them. A gang that is finishing has no deadline.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.state.phase import Phase

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.observation import Observation


class Deadlines(Struct, frozen=True):
    """Limit of each phase in seconds. `None` means no limit."""

    queue_s: float | None = None
    """Counts from the creation of the Job, or from the time at which a queue suspended the Job again."""
    assemble_s: float | None = None
    """Counts from the time at which the Job was resumed."""
    run_s: float | None = None
    """Counts from the start of the last rank."""


class Exceeded(Struct, frozen=True):
    """A deadline that has passed."""

    phase: Phase
    """`queued`, `assembling` or `running`."""
    seconds: float
    """The limit of the phase."""


_LIMITED_AS: Final = {
    Phase.SUBMITTED: Phase.QUEUED,
    Phase.QUEUED: Phase.QUEUED,
    Phase.ASSEMBLING: Phase.ASSEMBLING,
    Phase.RUNNING: Phase.RUNNING,
}


def allowed_s(phase: Phase, deadlines: Deadlines) -> float | None:
    """Return the limit of a phase in seconds; `None` if it has no limit."""
    by_phase = {
        Phase.QUEUED: deadlines.queue_s,
        Phase.ASSEMBLING: deadlines.assemble_s,
        Phase.RUNNING: deadlines.run_s,
    }
    return by_phase.get(phase)


def next_deadline(observation: Observation, deadlines: Deadlines) -> datetime | None:
    """Return the time at which the present phase must be over; `None` if it has no limit."""
    limited_as = _LIMITED_AS.get(observation.phase)
    since = observation.since
    allowed = allowed_s(limited_as, deadlines) if limited_as else None
    return since + timedelta(seconds=allowed) if since and allowed is not None else None


def deadline_exceeded(observation: Observation, deadlines: Deadlines, now: datetime) -> Exceeded | None:
    """Return the deadline that has passed at `now`, or `None`."""
    due = next_deadline(observation, deadlines)
    if due is None or now < due:
        return None
    phase = _LIMITED_AS[observation.phase]
    allowed = allowed_s(phase, deadlines)
    assert allowed is not None, "next_deadline returned a time, so the phase has a limit"
    return Exceeded(phase, allowed)
