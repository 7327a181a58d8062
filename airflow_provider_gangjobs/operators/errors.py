"""From the event of a gang that did not succeed to the error that its task raises. Pure."""

from __future__ import annotations

from typing import Final

from airflow_provider_gangjobs.exceptions import (
    AppFailed,
    DeadlineExceeded,
    Disrupted,
    GangFailed,
    GangJobError,
    ImagePullFailed,
    JobDeleted,
    JobReplaced,
    Preempted,
    TrackingFailed,
    Unschedulable,
)
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, RankEnd, Status
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.waiting import WaitCause
from airflow_provider_gangjobs.triggers.wait import EXECUTION_TIMEOUT

NOT_RUN_BY_IMAGE: Final = f".{WaitCause.IMAGE}"
JOB_DEADLINE: Final = "DeadlineExceeded"
"""The Job's own; what its ranks were lost to before is not what ended it."""
NOT_PLACED: Final = f".{WaitCause.UNSCHEDULABLE}"


def error_from_event(event: GangEvent, log_tail: str = "", *, max_disruptions: int = 0) -> GangJobError:
    """The error to raise. The event must not say that the gang succeeded, or runs.

    `log_tail` are the last lines of the rank that failed first, if they could be read.
    """
    make = {
        Status.FAILED: lambda event: _failed(event, log_tail, max_disruptions),
        Status.TIMEOUT: _late,
        Status.DELETED: _deleted,
        Status.REPLACED: _replaced,
        Status.ERROR: _unknown,
    }[event.status]
    return make(event)


def _failed(event: GangEvent, log_tail: str, max_disruptions: int) -> GangJobError:
    bad = [rank for rank in event.ranks if rank.outcome is not OutcomeKind.SUCCEEDED]
    ranks = tuple(rank.rank for rank in bad if rank.rank is not None)
    ref, reason, message = str(event.ref), event.reason, _said(event)
    match bad[0] if bad else None:
        case RankEnd(outcome=OutcomeKind.PREEMPTED, node=node) if reason != JOB_DEADLINE:
            return Preempted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        case RankEnd(outcome=OutcomeKind.EVICTED | OutcomeKind.LOST, node=node) if reason != JOB_DEADLINE:
            return Disrupted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        case RankEnd(outcome=OutcomeKind.FAILED, exit_code=code) as first if code:
            return AppFailed(ref, reason, ranks, message, first.rank, code, first.container, _last(first, log_tail))
    return GangFailed(ref, reason, ranks, message)


def _last(rank: RankEnd, log_tail: str) -> str:
    """The last that the rank said, with a heading."""
    who = f"pod {rank.pod}" if rank.rank is None else f"rank {rank.rank}"
    if log_tail:
        return f"Last lines of {who}:\n{log_tail}"
    return f"Termination message of {who}:\n{rank.message}" if rank.message else ""


def _said(event: GangEvent) -> str:
    """What happened and what to do about it, as the diagnosis has it."""
    return " ".join(map(_as_sentence, filter(None, (event.message, event.remedy, *event.notes))))


def _seen(event: GangEvent) -> str:
    """What happened, for errors that show the remedy by themselves."""
    return " ".join(map(_as_sentence, filter(None, (event.message, *event.notes))))


def _as_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _late(event: GangEvent) -> GangJobError:
    if event.reason.endswith(NOT_RUN_BY_IMAGE):
        return ImagePullFailed(ref=str(event.ref), reason=event.reason, message=_seen(event), image=event.image)
    kind = Unschedulable if event.reason.endswith(NOT_PLACED) else DeadlineExceeded
    waiting_for = "\n".join(filter(None, (event.message, *event.notes)))
    return kind(
        ref=str(event.ref),
        phase=event.phase,
        seconds=event.seconds,
        waiting_for=waiting_for,
        advice=event.remedy,
        limited_by="execution_timeout" if event.reason == EXECUTION_TIMEOUT else "",
    )


def _deleted(event: GangEvent) -> GangJobError:
    return JobDeleted(str(event.ref), event.phase, _seen(event), advice=event.remedy)


def _replaced(event: GangEvent) -> GangJobError:
    return JobReplaced(str(event.ref), event.phase, _seen(event), event.uid, event.other_uid, advice=event.remedy)


def _unknown(event: GangEvent) -> GangJobError:
    return TrackingFailed(ref=str(event.ref), reason=event.reason, last_phase=event.phase, message=_said(event))
