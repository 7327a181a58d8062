"""Builds the error that a task raises from the event of a gang that did not succeed. Pure."""

from __future__ import annotations

from typing import Final

from airflow_provider_gangjobs.attempt.deferral import EXECUTION_TIMEOUT
from airflow_provider_gangjobs.exceptions import (
    AppFailed,
    DeadlineExceeded,
    Disrupted,
    GangDeleted,
    GangFailed,
    GangJobError,
    ImagePullFailed,
    JobDeleted,
    JobReplaced,
    OutOfMemory,
    Preempted,
    QueueRefused,
    StartFailed,
    TrackingFailed,
    Unschedulable,
)
from airflow_provider_gangjobs.exceptions.gang_end import LAST_LINES_OF, GangEndError
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, RankEnd, Status
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pods import REASON_EVICTED
from airflow_provider_gangjobs.gang.state.stored_gang import REASON_JOB_DEADLINE
from airflow_provider_gangjobs.gang.state.verdict import REASON_DELETED_ON_PURPOSE
from airflow_provider_gangjobs.gang.state.waiting import WaitCause
from airflow_provider_gangjobs.kube.text import to_sentence

IMAGE_REASON_SUFFIX: Final = f".{WaitCause.IMAGE}"
_TIMEOUT_ERRORS: Final = {
    f".{WaitCause.UNSCHEDULABLE}": Unschedulable,
    f".{WaitCause.VOLUME}": Unschedulable,
    f"{Phase.QUEUED}.{WaitCause.QUEUE_REFUSED}": QueueRefused,
}
"""By the end of the reason of a timeout event."""
_APP_ERRORS: Final[dict[str, type[AppFailed]]] = {
    Category.OUT_OF_MEMORY: OutOfMemory,
    Category.START_FAILED: StartFailed,
}


def error_from_event(event: GangEvent, log_tail: str = "", *, max_disruptions: int = 0) -> GangJobError:
    """Return the error to raise.

    :param event: The event of the gang. Its status is neither `succeeded` nor `running`.
    :param log_tail: The last lines of the rank that failed first, if they could be read.
    :param max_disruptions: How many disruptions in a row the task allows, for the message.
    """
    build = {
        Status.FAILED: lambda event: _failed_error(event, log_tail, max_disruptions),
        Status.TIMEOUT: _timeout_error,
        Status.DELETED: _deleted_error,
        Status.REPLACED: _replaced_error,
        Status.ERROR: _tracking_error,
    }[event.status]
    error = build(event)
    if isinstance(error, GangEndError):
        error.category = event.category
    return error


def _failed_error(event: GangEvent, log_tail: str, max_disruptions: int) -> GangJobError:
    failed = [rank for rank in event.ranks if rank.outcome is not OutcomeKind.SUCCEEDED]
    ranks = tuple(rank.rank for rank in failed if rank.rank is not None)
    ref, reason, message = str(event.ref), event.reason, _message_with_remedy(event)
    # A disruption before the activeDeadlineSeconds of the Job passed did not end the Job.
    match failed[0] if failed else None:
        case RankEnd(outcome=OutcomeKind.PREEMPTED, node=node) if reason != REASON_JOB_DEADLINE:
            return Preempted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        case RankEnd(outcome=OutcomeKind.EVICTED | OutcomeKind.LOST, node=node) if reason != REASON_JOB_DEADLINE:
            return Disrupted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        # The exit code of a pod that was evicted because of a limit of its own may be unknown.
        case RankEnd(outcome=OutcomeKind.FAILED, exit_code=code) as first if code or first.reason == REASON_EVICTED:
            evidence = _evidence(first, log_tail, message)
            error_class = _APP_ERRORS.get(event.category, AppFailed)
            return error_class(ref, reason, ranks, message, first.rank, code, first.container, evidence)
    return GangFailed(ref, reason, ranks, message)


def _evidence(rank: RankEnd, log_tail: str, message: str) -> str:
    """Return the last lines of the rank's log or, without a log, its termination message, with a heading.

    :param message: What happened. If the program left no termination message, the rank has the message of the kubelet,
        which is already part of this text.
    """
    if log_tail:
        return f"{LAST_LINES_OF}{rank.name}:\n{log_tail}"
    has_own = rank.message and rank.message.strip(" .") not in message
    return f"Termination message of {rank.name}:\n{rank.message.rstrip()}" if has_own else ""


def _message_with_remedy(event: GangEvent) -> str:
    return " ".join(map(to_sentence, filter(None, (event.message, event.remedy, *event.notes))))


def _message_without_remedy(event: GangEvent) -> str:
    return " ".join(map(to_sentence, filter(None, (event.message, *event.notes))))


def _timeout_error(event: GangEvent) -> GangJobError:
    ref, reason = str(event.ref), event.reason
    if reason.endswith(IMAGE_REASON_SUFFIX):
        return ImagePullFailed(ref=ref, reason=reason, message=_message_without_remedy(event), image=event.image)
    error_class = next((kind for end, kind in _TIMEOUT_ERRORS.items() if reason.endswith(end)), DeadlineExceeded)
    return error_class(
        ref=ref,
        phase=event.phase,
        seconds=event.seconds,
        waiting_for="\n".join(filter(None, (event.message, *event.notes))),
        advice=event.remedy,
        limited_by="execution_timeout" if reason == EXECUTION_TIMEOUT else "",
    )


def _deleted_error(event: GangEvent) -> GangJobError:
    error_class = GangDeleted if event.reason == REASON_DELETED_ON_PURPOSE else JobDeleted
    return error_class(str(event.ref), event.phase, _message_without_remedy(event), advice=event.remedy)


def _replaced_error(event: GangEvent) -> GangJobError:
    message = _message_without_remedy(event)
    return JobReplaced(str(event.ref), event.phase, message, event.uid, event.other_uid, advice=event.remedy)


def _tracking_error(event: GangEvent) -> GangJobError:
    message = _message_with_remedy(event)
    return TrackingFailed(ref=str(event.ref), reason=event.reason, last_phase=event.phase, message=message)
