"""Why a gang has ended, by the outcomes of its ranks. Pure.

The first case that fits an outcome gives the cause. `gang.state.gang_state` has what is not an end of a rank.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.outcome.outcomes import (
    REASONS_NODE_SHUTDOWN,
    SIGKILL,
    SIGTERM,
    FailedRanks,
    Outcome,
    OutcomeKind,
    root_cause,
)
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.gang.state.gang_state import reason_of_verdict
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.gang.state.reason import Reason, because
from airflow_provider_gangjobs.gang.state.stopped import REASON_JOB_DEADLINE
from airflow_provider_gangjobs.gang.state.stored_gang import REASON_JOB_MISSING
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.gang.state.phase import Verdict


# Messages of the kubelet about a pod that it evicted or refused (pkg/kubelet/eviction/helpers.go).
_LOW_ON: Final = re.compile(r"The node was low on resource: ([\w./-]*\w)")
_HAD_CONDITION: Final = re.compile(r"The node had condition: \[(\w[\w ]*)\]")
_SIGNALS: Final = {known.value: known.name for known in signal.Signals}


def _of_pressure(outcome: Outcome) -> tuple[str, dict[str, str]]:
    if found := _HAD_CONDITION.search(outcome.status_message):
        return "NodeLacksResources", {"condition": found[1]}
    found = _LOW_ON.search(outcome.status_message)
    return "NodePressure", {"resource": found[1] if found else "a resource"}


def _of_signal(number: int) -> tuple[str, dict[str, str]]:
    cause = "Killed" if number in {SIGKILL, SIGTERM} else "Crashed"
    return cause, {"signal": str(number), "signal_name": _SIGNALS.get(number, "unknown")}


def _in_parentheses(text: str) -> str:
    return f" ({text})" if text else ""


def _find_cause(outcome: Outcome) -> tuple[str, dict[str, str]]:
    """Return the cause and its data, by the first case that fits."""
    match outcome:
        case Outcome(outcome=OutcomeKind.PREEMPTED):
            return "Preempted", {}
        case Outcome(outcome=OutcomeKind.EVICTED, reason=reason) if reason in REASONS_NODE_SHUTDOWN:
            return "NodeShutDown", {}
        case Outcome(outcome=OutcomeKind.EVICTED, reason=podutil.REASON_EVICTED):
            return _of_pressure(outcome)
        case Outcome(outcome=OutcomeKind.EVICTED):
            return "Evicted", {"said": outcome.disruption or outcome.reason}
        case Outcome(outcome=OutcomeKind.LOST):
            return "NodeLost", {}
        case Outcome(is_deleted_success=True):
            return "PodDeletedAfterSuccess", {}
        case Outcome(outcome=OutcomeKind.DELETED):
            return "PodDeleted", {}
        case Outcome(reason=podutil.REASON_EVICTED):
            return "OverLimit", {"said": _in_parentheses(outcome.status_message.strip(" ."))}
        case Outcome(reason="OOMKilled", exit_code=code):
            return "OOMKilled", {"exit_code": str(code)}
        case Outcome(reason="StartError" | "ContainerCannotRun"):
            return "StartError", {}
        case Outcome(reason="DeadlineExceeded"):
            return "PodDeadline", {}
        case Outcome(exit_code=127):
            return "CommandNotFound", {}
        case Outcome(exit_code=126):
            return "CommandNotExecutable", {}
        case Outcome(signal=int(number)):
            return _of_signal(number)
        case Outcome(exit_code=int(code), reason=reason) if code:
            said = "" if reason in {"", "Error"} else reason
            return "AppFailed", {"exit_code": str(code), "said": _in_parentheses(said)}
    return "PodFailed", {"said": outcome.reason or "no reason given"}


_CODES: Final = {
    **dict.fromkeys(("NodeShutDown", "NodeLacksResources", "NodePressure"), "Evicted"),
    "PodDeletedAfterSuccess": "PodDeleted",
    "RestartedTooOften": "AppFailed",
}
"""The code of an end, if it is not the name of the cause."""
_BACKOFF_LIMIT: Final = "BackoffLimitExceeded"


def reason_of_outcome(outcome: Outcome) -> Reason:
    """Return why one rank ended, without considering the other ranks."""
    return _reason_of(outcome, *_find_cause(outcome))


def _reason_of(outcome: Outcome, cause: str, data: dict[str, str]) -> Reason:
    return because(
        cause,
        rank=outcome.name,
        container=outcome.container,
        node=outcome.node,
        error=outcome.headline,
        evidence=outcome.headline or outcome.status_message.strip() or outcome.disruption,
        since=outcome.caused,
        code=_CODES.get(cause, cause),
        **data,  # type: ignore[arg-type]
    )


def reason_of_end(verdict: Verdict, outcomes: Sequence[Outcome], failed: FailedRanks | None = None) -> Reason:
    """Return why the gang ended, from the root cause among the ranks or else from the verdict on the Job.

    :param failed: All ranks that failed, if `outcomes` has only some of them.
    """
    cause = root_cause(outcomes) if verdict.status is Status.FAILED and verdict.reason != REASON_JOB_DEADLINE else None
    if verdict.reason == REASON_JOB_MISSING and cause is not None and cause.outcome is OutcomeKind.DELETED:
        cause = None  # the pods were deleted with their Job, or because the provider has ended the other roles
    if cause is None:
        return reason_of_verdict(verdict)
    found = reason_of_outcome(cause)
    restarted = max(outcomes, key=lambda one: one.restarts)
    if verdict.reason == _BACKOFF_LIMIT and cause.outcome is OutcomeKind.DELETED and restarted.restarts:
        # With restartPolicy OnFailure, restarts of containers count, and the Job controller deletes the pods.
        found = _reason_of(restarted, "RestartedTooOften", {"restarted": pluralize(restarted.restarts, "time")})
    others = len(FailedRanks(outcomes) if failed is None else failed) - (not cause.is_deleted_success)
    return replace(found, data={**found.data, "others": str(others)}, since=verdict.at)


def reason_of(state: GangState, outcomes: Sequence[Outcome]) -> Reason:
    """Return why a gang waits, runs, or has ended, by its state and the outcomes that are known."""
    if state.verdict is None or state.is_stopped:
        return state.reason
    return reason_of_end(state.verdict, outcomes)
