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
from airflow_provider_gangjobs.gang.outcome.outcomes import Ending
from airflow_provider_gangjobs.gang.state.waiting import Cause

NOT_RUN_BY_IMAGE: Final = f".{Cause.IMAGE}"
JOB_DEADLINE: Final = "DeadlineExceeded"
"""The Job's own; what its ranks were lost to before is not what ended it."""
NOT_PLACED: Final = f".{Cause.UNSCHEDULABLE}"


def error_of(event: GangEvent, log_tail: str = "", *, max_disruptions: int = 0) -> GangJobError:
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
    bad = [rank for rank in event.ranks if rank.outcome is not Ending.SUCCEEDED]
    ranks = tuple(rank.rank for rank in bad if rank.rank is not None)
    ref, reason, message = str(event.ref), event.reason, _said(event)
    match bad[0] if bad else None:
        case RankEnd(outcome=Ending.PREEMPTED, node=node) if reason != JOB_DEADLINE:
            return Preempted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        case RankEnd(outcome=Ending.EVICTED | Ending.LOST, node=node) if reason != JOB_DEADLINE:
            return Disrupted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        case RankEnd(outcome=Ending.FAILED, exit_code=code) as first if code:
            last = log_tail or first.message
            tail = f"Last lines of rank {first.rank}:\n{last}" if last else ""
            return AppFailed(ref, reason, ranks, message, first.rank, code, first.container, tail)
    return GangFailed(ref, reason, ranks, message)


def _said(event: GangEvent) -> str:
    """What happened and what to do about it, as the diagnosis has it."""
    sentences = (event.message, event.remedy, *event.notes)
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in sentences if text)


def _late(event: GangEvent) -> GangJobError:
    seconds = event.seconds or 0.0
    if event.reason.endswith(NOT_RUN_BY_IMAGE):
        return ImagePullFailed(ref=str(event.ref), reason=event.reason, message=event.message)
    kind = Unschedulable if event.reason.endswith(NOT_PLACED) else DeadlineExceeded
    waiting_for = "\n".join(filter(None, (event.message, *event.notes)))
    return kind(ref=str(event.ref), phase=event.phase, seconds=seconds, waiting_for=waiting_for, advice=event.remedy)


def _deleted(event: GangEvent) -> GangJobError:
    return JobDeleted(ref=str(event.ref), last_phase=event.phase, last_seen=_said(event))


def _replaced(event: GangEvent) -> GangJobError:
    return JobReplaced(ref=str(event.ref), last_phase=event.phase, last_seen=_said(event), uid=event.uid)


def _unknown(event: GangEvent) -> GangJobError:
    return TrackingFailed(ref=str(event.ref), reason=event.reason, last_phase=event.phase, message=_said(event))
