"""Diagnosis of the end of a gang by the outcomes of its ranks: what happened, why, and what to do. Pure.

The first case that fits an outcome explains it. `gang.state.diagnosis` has the rules for
what is not an end of a rank. Both return the same value, and every door shows it and judges nothing itself.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

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
from airflow_provider_gangjobs.gang.state.category import Category, Diagnosis
from airflow_provider_gangjobs.gang.state.diagnosis import diagnose_verdict
from airflow_provider_gangjobs.gang.state.gang_jobs import REASON_JOB_MISSING
from airflow_provider_gangjobs.gang.state.phase import VerdictKind
from airflow_provider_gangjobs.gang.state.stopped import REASON_JOB_DEADLINE
from airflow_provider_gangjobs.gang.state.waiting import WaitCause
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.gang.state.phase import Verdict


# Messages of the kubelet about a pod that it evicted or refused (pkg/kubelet/eviction/helpers.go).
_LOW_ON: Final = re.compile(r"The node was low on resource: ([\w./-]*\w)")
_HAD_CONDITION: Final = re.compile(r"The node had condition: \[(\w[\w ]*)\]")


def _describe_pressure(outcome: Outcome) -> str:
    if found := _HAD_CONDITION.search(outcome.status_message):
        return f"was refused by its node, which lacked resources ({found[1]})"
    found = _LOW_ON.search(outcome.status_message)
    return f"was evicted because its node was low on {found[1] if found else 'a resource'}"


def _describe_over_limit(outcome: Outcome) -> str:
    which = outcome.status_message.strip(" .")
    return f"was evicted: it used more storage than its own limit{f' ({which})' if which else ''}"


def _explain(outcome: Outcome) -> tuple[str, Category, str, str]:
    """Return a code, a category, what happened, and what to do, by the first case that fits."""
    match outcome:
        case Outcome(outcome=OutcomeKind.PREEMPTED):
            what = "was preempted by a pod of higher priority"
            return "Preempted", Category.PREEMPTED, what, "Set a higher priority_class to prevent preemption."
        case Outcome(outcome=OutcomeKind.EVICTED, reason=reason) if reason in REASONS_NODE_SHUTDOWN:
            what = "was ended because its node shut down"
            return "Evicted", Category.EVICTED, what, "Find out why the node was shut down."
        case Outcome(outcome=OutcomeKind.EVICTED, reason=podutil.REASON_EVICTED):
            remedy = "Request the amount of memory and disk that the rank really uses."
            return "Evicted", Category.EVICTED, _describe_pressure(outcome), remedy
        case Outcome(outcome=OutcomeKind.EVICTED):
            what = f"was evicted ({outcome.disruption or outcome.reason})"
            remedy = "Find out who or what evicted the pod, for example a drain of its node."
            return "Evicted", Category.EVICTED, what, remedy
        case Outcome(outcome=OutcomeKind.LOST):
            what = "was lost: its end was not observed"
            return "NodeLost", Category.NODE_LOST, what, "Find out why the node went away."
        case Outcome(is_deleted_success=True):
            what = "had its pod deleted after its main container had succeeded, before its other containers had ended"
            remedy = "Find out who deleted the pod, and let its other containers end with the main container."
            return "PodDeleted", Category.POD_DELETED, what, remedy
        case Outcome(outcome=OutcomeKind.DELETED):
            remedy = "Find out who deleted the pod: a person, a drain or a clean-up."
            return "PodDeleted", Category.POD_DELETED, "had its pod deleted", remedy
        case Outcome(reason=podutil.REASON_EVICTED):
            remedy = "Raise the limit of ephemeral-storage or the sizeLimit of the emptyDir volume, or write less data."
            return "OverLimit", Category.STORAGE_EXCEEDED, _describe_over_limit(outcome), remedy
        case Outcome(reason="OOMKilled", exit_code=code):
            remedy = "Raise resources.memory, or let each rank use less memory."
            if other := outcome.container:
                remedy = (
                    f"Raise limits.memory of container {other} in pod_overrides, in the manifest, or in its webhook."
                )
            return "OOMKilled", Category.OUT_OF_MEMORY, f"ran out of memory (exit code {code})", remedy
        case Outcome(reason="StartError" | "ContainerCannotRun"):
            remedy = "Check command, args and working directory against the image."
            return "StartError", Category.START_FAILED, "could not start its command", remedy
        case Outcome(reason="DeadlineExceeded"):
            what = "ran past its pod's activeDeadlineSeconds"
            remedy = "Raise activeDeadlineSeconds of the pod template."
            return "PodDeadline", Category.DEADLINE_EXCEEDED, what, remedy
        case Outcome(exit_code=127):
            what = "exited with code 127: its command was not found"
            return "CommandNotFound", Category.START_FAILED, what, "Check command and args against the image."
        case Outcome(exit_code=126):
            what = "exited with code 126: its command could not be executed"
            remedy = "Check the permissions of the command in the image."
            return "CommandNotExecutable", Category.START_FAILED, what, remedy
        case Outcome(signal=int(number)):
            names = {known.value: known.name for known in signal.Signals}
            what = f"was ended by signal {number} ({names.get(number, 'unknown')})"
            if number in {SIGKILL, SIGTERM}:
                remedy = (
                    "Find out what sent the signal: memory pressure on the node, a probe, or the rank's own supervisor."
                )
                return "Killed", Category.APPLICATION_FAILED, what, remedy
            return "Crashed", Category.APPLICATION_FAILED, what, "Look at the log of this rank: its program crashed."
        case Outcome(exit_code=int(code), reason=reason) if code:
            what = f"exited with code {code}" + (f" ({reason})" if reason not in {"", "Error"} else "")
            return "AppFailed", Category.APPLICATION_FAILED, what, "Look at the log of this rank."
    what = f"failed ({outcome.reason or 'no reason given'})"
    return "PodFailed", Category.POD_FAILED, what, "Look at the pod's message and the events of its node."


def diagnose_outcome(outcome: Outcome) -> Diagnosis:
    """Diagnose why one rank ended, without considering the other ranks."""
    code, category, what, remedy = _explain(outcome)
    container = f" (container {outcome.container})" if outcome.container else ""
    where = f" on {outcome.node}" if outcome.node else ""
    error = f": {outcome.headline}" if outcome.headline else ""
    return Diagnosis(
        category,
        f"{outcome.name}{container} {what}{where}{error}",
        remedy,
        outcome.headline or outcome.status_message.strip() or outcome.disruption,
        outcome.caused,
        code,
    )


def diagnose_end(verdict: Verdict, outcomes: Sequence[Outcome], failed: FailedRanks | None = None) -> Diagnosis:
    """Diagnose why the gang ended, from the root cause among the ranks or else from the verdict on the Job.

    :param failed: All ranks that failed, if `outcomes` has only some of them.
    """
    cause = (
        root_cause(outcomes) if verdict.kind is VerdictKind.FAILED and verdict.reason != REASON_JOB_DEADLINE else None
    )
    if verdict.reason == REASON_JOB_MISSING and cause is not None and cause.outcome is OutcomeKind.DELETED:
        cause = None  # the pods were deleted with their Job, or because the provider has ended the other roles
    if cause is None:
        return diagnose_verdict(verdict)
    found = diagnose_outcome(cause)
    others = len(FailedRanks(outcomes) if failed is None else failed) - (not cause.is_deleted_success)
    consequence = f"; {pluralize(others, 'other rank')} ended after it" if others > 0 else ""
    return replace(found, summary=f"{found.summary}{consequence}", since=verdict.at)


def diagnose(observation: Observation, outcomes: Sequence[Outcome]) -> Diagnosis:
    """Diagnose a gang that waits, runs, or has ended, by its observation and the outcomes that are known."""
    if observation.verdict is None or observation.wait.cause is WaitCause.STOPPED:
        return observation.diagnosis
    return diagnose_end(observation.verdict, outcomes)
