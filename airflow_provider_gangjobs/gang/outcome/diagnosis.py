"""Diagnosis of the end of a gang by the outcomes of its ranks: what happened, why, and what to do. Pure.

A table has the rules for an outcome, and the first rule that matches wins. `gang.state.diagnosis` has the rules for
what is not an end of a rank. Both return the same value, and every door shows it and judges nothing itself.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
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
from airflow_provider_gangjobs.gang.state.category import Category, Diagnosis
from airflow_provider_gangjobs.gang.state.diagnosis import diagnose_verdict
from airflow_provider_gangjobs.gang.state.gang_jobs import REASON_JOB_MISSING
from airflow_provider_gangjobs.gang.state.phase import VerdictKind
from airflow_provider_gangjobs.gang.state.pods import REASON_EVICTED
from airflow_provider_gangjobs.gang.state.stored_gang import REASON_JOB_DEADLINE
from airflow_provider_gangjobs.gang.state.waiting import WaitCause
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.gang.state.phase import Verdict


@dataclass(frozen=True)
class _Rule:
    code: str
    category: Category
    applies: Callable[[Outcome], bool]
    describe: Callable[[Outcome], str]
    remedy: str


def _kind_is(kind: OutcomeKind) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.outcome is kind


def _reason_in(*reasons: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.reason in reasons


def _evicted_for(*reasons: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.outcome is OutcomeKind.EVICTED and outcome.reason in reasons


def _exit_in(*codes: int) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.exit_code in codes


def _constant(text: str) -> Callable[[Outcome], str]:
    return lambda outcome: text


def _describe_exit(outcome: Outcome) -> str:
    reason = f" ({outcome.reason})" if outcome.reason not in {"", "Error"} else ""
    return f"exited with code {outcome.exit_code}{reason}"


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


def _describe_signal(outcome: Outcome) -> str:
    assert outcome.signal is not None, "the rule matches only outcomes that have a signal"
    known = {number.value: number.name for number in signal.Signals}
    return f"was ended by signal {outcome.signal} ({known.get(outcome.signal, 'unknown')})"


_OUTCOME_RULES: Final = (
    _Rule(
        "Preempted",
        Category.PREEMPTED,
        _kind_is(OutcomeKind.PREEMPTED),
        _constant("was preempted by a pod of higher priority"),
        "Set a higher priority_class to prevent preemption.",
    ),
    _Rule(
        "Evicted",
        Category.EVICTED,
        _evicted_for(*REASONS_NODE_SHUTDOWN),
        _constant("was ended because its node shut down"),
        "Find out why the node was shut down.",
    ),
    _Rule(
        "Evicted",
        Category.EVICTED,
        _evicted_for(REASON_EVICTED),
        _describe_pressure,
        "Request the amount of memory and disk that the rank really uses.",
    ),
    _Rule(
        "Evicted",
        Category.EVICTED,
        _kind_is(OutcomeKind.EVICTED),
        lambda outcome: f"was evicted ({outcome.disruption or outcome.reason})",
        "Find out who or what evicted the pod, for example a drain of its node.",
    ),
    _Rule(
        "NodeLost",
        Category.NODE_LOST,
        _kind_is(OutcomeKind.LOST),
        _constant("was lost: its end was not observed"),
        "Find out why the node went away.",
    ),
    _Rule(
        "PodDeleted",
        Category.POD_DELETED,
        lambda outcome: outcome.is_deleted_success,
        _constant("had its pod deleted after its main container had succeeded, before its other containers had ended"),
        "Find out who deleted the pod, and let its other containers end with the main container.",
    ),
    _Rule(
        "PodDeleted",
        Category.POD_DELETED,
        _kind_is(OutcomeKind.DELETED),
        _constant("had its pod deleted"),
        "Find out who deleted the pod: a person, a drain or a clean-up.",
    ),
    _Rule(
        "OverLimit",
        Category.STORAGE_EXCEEDED,
        _reason_in(REASON_EVICTED),
        _describe_over_limit,
        "Raise the limit of ephemeral-storage or the sizeLimit of the emptyDir volume, or write less data.",
    ),
    _Rule(
        "OOMKilled",
        Category.OUT_OF_MEMORY,
        _reason_in("OOMKilled"),
        lambda outcome: f"ran out of memory (exit code {outcome.exit_code})",
        "Raise resources.memory, or let each rank use less memory.",
    ),
    _Rule(
        "StartError",
        Category.START_FAILED,
        _reason_in("StartError", "ContainerCannotRun"),
        _constant("could not start its command"),
        "Check command, args and working directory against the image.",
    ),
    _Rule(
        "PodDeadline",
        Category.DEADLINE_EXCEEDED,
        _reason_in("DeadlineExceeded"),
        _constant("ran past its pod's activeDeadlineSeconds"),
        "Raise activeDeadlineSeconds of the pod template.",
    ),
    _Rule(
        "CommandNotFound",
        Category.START_FAILED,
        _exit_in(127),
        _constant("exited with code 127: its command was not found"),
        "Check command and args against the image.",
    ),
    _Rule(
        "CommandNotExecutable",
        Category.START_FAILED,
        _exit_in(126),
        _constant("exited with code 126: its command could not be executed"),
        "Check the permissions of the command in the image.",
    ),
    _Rule(
        "Killed",
        Category.APPLICATION_FAILED,
        lambda outcome: outcome.signal in {SIGKILL, SIGTERM},
        _describe_signal,
        "Find out what sent the signal: memory pressure on the node, a probe, or the rank's own supervisor.",
    ),
    _Rule(
        "Crashed",
        Category.APPLICATION_FAILED,
        lambda outcome: outcome.signal is not None,
        _describe_signal,
        "Look at the log of this rank: its program crashed.",
    ),
    _Rule(
        "AppFailed",
        Category.APPLICATION_FAILED,
        lambda outcome: outcome.exit_code not in {None, 0},
        _describe_exit,
        "Look at the log of this rank.",
    ),
    _Rule(
        "PodFailed",
        Category.POD_FAILED,
        lambda outcome: True,
        lambda outcome: f"failed ({outcome.reason or 'no reason given'})",
        "Look at the pod's message and the events of its node.",
    ),
)


def diagnose_outcome(outcome: Outcome) -> Diagnosis:
    """Diagnose why one rank ended, without considering the other ranks."""
    rule = next(rule for rule in _OUTCOME_RULES if rule.applies(outcome))
    container = f" (container {outcome.container})" if outcome.container else ""
    where = f" on {outcome.node}" if outcome.node else ""
    error = f": {outcome.headline}" if outcome.headline else ""
    return Diagnosis(
        rule.category,
        f"{outcome.name}{container} {rule.describe(outcome)}{where}{error}",
        rule.remedy,
        outcome.headline or outcome.status_message.strip() or outcome.disruption,
        outcome.caused,
        rule.code,
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
    if observation.verdict is None or observation.wait.cause is WaitCause.HALTED:
        return observation.diagnosis
    return diagnose_end(observation.verdict, outcomes)
