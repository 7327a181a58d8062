"""Diagnosis: one plain sentence on why a gang ended or did not start, and what to do about it.

Tables of rules over outcomes, verdicts and causes; the first that matches is taken. A new insight
is a new row. `code` is a contract: stable words that dashboards and retry policies may match.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.outcome.outcomes import SIGKILL, SIGTERM, Outcome, OutcomeKind, root_cause
from airflow_provider_gangjobs.gang.state.verdict import Verdict, VerdictKind
from airflow_provider_gangjobs.gang.state.waiting import WaitCause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.gang.state.phase import Phase


@dataclass(frozen=True)
class Diagnosis:
    """What happened (`summary`), under a stable `code`, and what to do (`remedy`)."""

    code: str
    summary: str
    remedy: str = ""


@dataclass(frozen=True)
class _Rule:
    code: str
    applies: Callable[[Outcome], bool]
    what: Callable[[Outcome], str]
    remedy: str


def _ended_as(ending: OutcomeKind) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.outcome is ending


def _reason_in(*reasons: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.reason in reasons


def _exit_in(*codes: int) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.exit_code in codes


def _plain(text: str) -> Callable[[Outcome], str]:
    return lambda outcome: text


def _exited(outcome: Outcome) -> str:
    reason = f" ({outcome.reason})" if outcome.reason not in {"", "Error"} else ""
    return f"exited with code {outcome.exit_code}{reason}"


def _signalled(outcome: Outcome) -> str:
    assert outcome.signal is not None, "the rule asked for it"
    known = {number.value: number.name for number in signal.Signals}
    return f"was ended by signal {outcome.signal} ({known.get(outcome.signal, 'unknown')})"


_OUTCOMES: Final = (
    _Rule(
        "Preempted",
        _ended_as(OutcomeKind.PREEMPTED),
        _plain("was preempted by something of higher priority"),
        "A higher priority_class would keep its place.",
    ),
    _Rule(
        "Evicted",
        _ended_as(OutcomeKind.EVICTED),
        lambda outcome: f"was evicted ({outcome.disruption or outcome.reason})",
        "If its node ran short of memory or disk, request what it really uses.",
    ),
    _Rule(
        "NodeLost",
        _ended_as(OutcomeKind.LOST),
        _plain("was lost: nobody saw it end"),
        "Look for why its node went away.",
    ),
    _Rule(
        "PodDeleted",
        _ended_as(OutcomeKind.DELETED),
        _plain("had its pod deleted"),
        "Find out who deleted it: a person, a drain or a clean-up.",
    ),
    _Rule(
        "OverLimit",
        _reason_in("Evicted"),
        _plain("was evicted: it used more storage than its own limit"),
        "Raise its limit of ephemeral-storage or the sizeLimit of its emptyDir, or write less.",
    ),
    _Rule(
        "OOMKilled",
        _reason_in("OOMKilled"),
        lambda outcome: f"ran out of memory ({_exited(outcome)})",
        "Raise resources.memory, or let each rank hold less.",
    ),
    _Rule(
        "StartError",
        _reason_in("StartError", "ContainerCannotRun"),
        _plain("could not start its command"),
        "Check command, args and working directory against the image.",
    ),
    _Rule(
        "PodDeadline",
        _reason_in("DeadlineExceeded"),
        _plain("ran past its pod's activeDeadlineSeconds"),
        "Raise activeDeadlineSeconds of the pod template.",
    ),
    _Rule(
        "CommandNotFound",
        _exit_in(127),
        _plain("exited with code 127: its command was not found"),
        "Check command and args against the image.",
    ),
    _Rule(
        "CommandNotExecutable",
        _exit_in(126),
        _plain("exited with code 126: its command could not be executed"),
        "Check the permissions of the command in the image.",
    ),
    _Rule(
        "Killed",
        lambda outcome: outcome.signal in {SIGKILL, SIGTERM},
        _signalled,
        "Look for who ended it: memory pressure on the node, a probe, or its own supervisor.",
    ),
    _Rule(
        "Crashed",
        lambda outcome: outcome.signal is not None,
        _signalled,
        "Look at the log of this rank: its program crashed.",
    ),
    _Rule(
        "AppFailed",
        lambda outcome: outcome.exit_code not in {None, 0},
        _exited,
        "Look at the log of this rank.",
    ),
    _Rule(
        "PodFailed",
        lambda outcome: True,
        lambda outcome: f"failed ({outcome.reason or 'no reason given'})",
        "Look at the pod's message and the events of its node.",
    ),
)


def diagnose_outcome(outcome: Outcome) -> Diagnosis:
    """Why this rank ended, without regard to the others."""
    rule = next(rule for rule in _OUTCOMES if rule.applies(outcome))
    who = f"pod {outcome.pod}" if outcome.rank is None else f"rank {outcome.rank}"
    container = f" (container {outcome.container})" if outcome.container else ""
    where = f" on {outcome.node}" if outcome.node else ""
    said = f": {outcome.error}" if outcome.error else ""
    return Diagnosis(rule.code, f"{who}{container} {rule.what(outcome)}{where}{said}", rule.remedy)


_VERDICTS: Final = {
    "JobDeleted": "Find out who deleted the Job: a user, a TTL, or a clean-up of the namespace.",
    "JobReplaced": "Find out who creates Jobs of this name.",
    "DeadlineExceeded": "Raise activeDeadlineSeconds, which also counts the time until all ranks run.",
    "BackoffLimitExceeded": "Look at the events of the Job: its pods left no outcome.",
}


def diagnose_end(verdict: Verdict, outcomes: Sequence[Outcome]) -> Diagnosis:
    """Why the gang ended as it did: its first cause among the ranks, else the Job's own words."""
    if verdict.kind is VerdictKind.SUCCEEDED:
        return Diagnosis("Succeeded", "")
    cause = (
        root_cause(outcomes) if verdict.kind is VerdictKind.FAILED and verdict.reason != "DeadlineExceeded" else None
    )
    if cause is None:
        said = ": ".join(filter(None, (verdict.reason, verdict.message)))
        return Diagnosis(verdict.reason or "Failed", said, _VERDICTS.get(verdict.reason, ""))
    found = diagnose_outcome(cause)
    return Diagnosis(found.code, f"{found.summary}{_others(outcomes, cause)}", found.remedy)


def _others(outcomes: Sequence[Outcome], cause: Outcome) -> str:
    count = sum(outcome.outcome is not OutcomeKind.SUCCEEDED and outcome.uid != cause.uid for outcome in outcomes)
    return f"; {count} other rank{'s'[: count != 1]} ended after it" if count else ""


_CAUSES: Final = {
    WaitCause.CONTROLLER: "Check that the Job controller (kube-controller-manager) runs.",
    WaitCause.SUBMISSION: "Run the task again: what was begun is completed.",
    WaitCause.HALTED: "Submit it again.",
    WaitCause.QUEUE: "Raise queue_timeout, or look at what holds the queue.",
    WaitCause.IMAGE: "Check the image's name and tag and image_pull_secrets.",
    WaitCause.CONFIG: "Create the ConfigMap or Secret that the pod names, or correct its name.",
    WaitCause.PODS_MISSING: "Look at the events of the Job: a quota or a webhook may refuse its pods.",
    WaitCause.UNSCHEDULABLE: "Ask for fewer workers or less of each resource, or raise assemble_timeout.",
    WaitCause.SCHEDULER: "Check that the scheduler runs and schedules gangs; raise assemble_timeout if it is busy.",
    WaitCause.STARTING: "Raise assemble_timeout, or use a smaller image.",
    WaitCause.RANKS: "Raise run_timeout.",
}


def diagnose_timeout(phase: Phase, cause: WaitCause, summary: str) -> Diagnosis:
    """Why a phase took too long: what the gang waited for when its deadline passed."""
    return Diagnosis(f"Deadline.{phase}.{cause}", summary, _CAUSES.get(cause, ""))
