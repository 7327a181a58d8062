"""Deadlines: three limits, each for a phase that the cluster does not limit.

Kubernetes has no time limit for a gang that is never admitted or never fits. All three deadlines count from times of
the API server, so the restart of a triggerer does not change them. A gang that is finishing has no deadline.

Kueue may stop a gang that assembles and let it run again (`waitForPodsReady`). The deadline of assembling counts all of
these runs, and has passed in the queue if they took all of its time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.reason import IN_QUEUE, REFUSED_BY_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.state.gang_state import GangState


class Deadlines(Struct, frozen=True):
    """Limit of each phase in seconds. `None` means no limit."""

    queue_s: float | None = None
    """Counts from the creation of the Job, or from the time at which a queue suspended the Job again."""
    assemble_s: float | None = None
    """Counts from the time at which the Job was resumed, less the time of the runs that Kueue has stopped."""
    run_s: float | None = None
    """Counts from the start of the last rank."""

    @classmethod
    def of(cls, limits: Mapping[str, float]) -> Self:
        """Return the deadlines of the parameters of a task, in seconds by name."""
        return cls(*(limits.get(PARAMETERS[phase]) for phase in (Phase.QUEUED, Phase.ASSEMBLING, Phase.RUNNING)))


def allowed_s(phase: Phase, deadlines: Deadlines) -> float | None:
    """Return the limit of a phase in seconds; `None` if it has no limit."""
    by_phase = {
        Phase.QUEUED: deadlines.queue_s,
        Phase.ASSEMBLING: deadlines.assemble_s,
        Phase.RUNNING: deadlines.run_s,
    }
    return by_phase.get(phase)


class Limit(Struct, frozen=True):
    """The deadline that limits a gang now."""

    phase: Phase
    """`queued`, `assembling` or `running`."""
    seconds: float
    """The limit of the phase."""
    at: datetime


def next_limit(state: GangState, deadlines: Deadlines) -> Limit | None:
    """Return the deadline that passes next; `None` if the present phase has no limit."""
    limited_as = Phase.QUEUED if state.phase is Phase.SUBMITTED else state.phase
    since, earlier_s = state.since, state.earlier_assembly_s
    if since is None:
        return None
    if limited_as is Phase.QUEUED and deadlines.assemble_s is not None and earlier_s >= deadlines.assemble_s:
        return Limit(Phase.ASSEMBLING, deadlines.assemble_s, since)
    allowed = allowed_s(limited_as, deadlines)
    if allowed is None:
        return None
    left_s = allowed - earlier_s if limited_as is Phase.ASSEMBLING else allowed
    return Limit(limited_as, allowed, since + timedelta(seconds=left_s))


PARAMETERS: Final = {
    Phase.QUEUED: "queue_timeout",
    Phase.ASSEMBLING: "assemble_timeout",
    Phase.RUNNING: "run_timeout",
}
"""The parameter of the task that limits a phase."""


def limit_of_previous(limits: Mapping[str, float]) -> tuple[str, float | None]:
    """Return the parameter that limits the wait for the pods of an earlier attempt, and its seconds; `None` means no
    limit."""
    name = "assemble_timeout"
    return name, limits.get(name)


def missing_limit(state: GangState, deadlines: Deadlines) -> str | None:
    """Return the parameter of the task that would limit the wait of a gang for its queue or for nodes.

    `None` if the wait has a limit, or if the gang does not wait for these.
    """
    is_queued = state.reason.cause in IN_QUEUE | REFUSED_BY_QUEUE
    waits = (is_queued or state.waits_for_nodes) and next_limit(state, deadlines) is None
    return PARAMETERS.get(state.phase) if waits else None


def next_deadline(state: GangState, deadlines: Deadlines) -> datetime | None:
    """Return the time at which the present phase must be over; `None` if it has no limit."""
    limit = next_limit(state, deadlines)
    return limit.at if limit is not None else None


def deadline_exceeded(state: GangState, deadlines: Deadlines, now: datetime) -> Limit | None:
    """Return the deadline that has passed at `now`, or `None`."""
    limit = next_limit(state, deadlines)
    return limit if limit is not None and now >= limit.at else None
