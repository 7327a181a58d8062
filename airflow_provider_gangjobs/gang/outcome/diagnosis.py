"""Diagnosis: one sentence on why a gang ended or did not start, and one sentence on what to do.

The diagnosis comes from tables of rules for outcomes, verdicts and causes of waiting. The first rule that matches wins.
Dashboards and retry policies may match the field `code`, so codes are never renamed.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
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
from airflow_provider_gangjobs.gang.schedulers.volcano import ANNOTATION_QUEUE, NOT_PROCESSED
from airflow_provider_gangjobs.gang.state.gang_jobs import REASON_JOB_MISSING
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.pods import REASON_EVICTED
from airflow_provider_gangjobs.gang.state.queue_wait import REASON_GIVEN_UP
from airflow_provider_gangjobs.gang.state.stored_gang import REASON_JOB_DEADLINE
from airflow_provider_gangjobs.gang.state.verdict import REASON_DELETED_ON_PURPOSE, Verdict, VerdictKind
from airflow_provider_gangjobs.gang.state.waiting import WaitCause
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Diagnosis:
    """A stable `code`, a `summary` of what happened, and a `remedy` that says what to do."""

    code: str
    summary: str
    remedy: str = ""


@dataclass(frozen=True)
class _Rule:
    code: str
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
        _kind_is(OutcomeKind.PREEMPTED),
        _constant("was preempted by a pod of higher priority"),
        "Set a higher priority_class to prevent preemption.",
    ),
    _Rule(
        "Evicted",
        _evicted_for(*REASONS_NODE_SHUTDOWN),
        _constant("was ended because its node shut down"),
        "Find out why the node was shut down.",
    ),
    _Rule(
        "Evicted",
        _evicted_for(REASON_EVICTED),
        _describe_pressure,
        "Request the amount of memory and disk that the rank really uses.",
    ),
    _Rule(
        "Evicted",
        _kind_is(OutcomeKind.EVICTED),
        lambda outcome: f"was evicted ({outcome.disruption or outcome.reason})",
        "Find out who or what evicted the pod, for example a drain of its node.",
    ),
    _Rule(
        "NodeLost",
        _kind_is(OutcomeKind.LOST),
        _constant("was lost: its end was not observed"),
        "Find out why the node went away.",
    ),
    _Rule(
        "PodDeleted",
        lambda outcome: outcome.is_deleted_success,
        _constant("had its pod deleted after its main container had succeeded, before its other containers had ended"),
        "Find out who deleted the pod, and let its other containers end with the main container.",
    ),
    _Rule(
        "PodDeleted",
        _kind_is(OutcomeKind.DELETED),
        _constant("had its pod deleted"),
        "Find out who deleted the pod: a person, a drain or a clean-up.",
    ),
    _Rule(
        "OverLimit",
        _reason_in(REASON_EVICTED),
        _describe_over_limit,
        "Raise the limit of ephemeral-storage or the sizeLimit of the emptyDir volume, or write less data.",
    ),
    _Rule(
        "OOMKilled",
        _reason_in("OOMKilled"),
        lambda outcome: f"ran out of memory (exit code {outcome.exit_code})",
        "Raise resources.memory, or let each rank use less memory.",
    ),
    _Rule(
        "StartError",
        _reason_in("StartError", "ContainerCannotRun"),
        _constant("could not start its command"),
        "Check command, args and working directory against the image.",
    ),
    _Rule(
        "PodDeadline",
        _reason_in("DeadlineExceeded"),
        _constant("ran past its pod's activeDeadlineSeconds"),
        "Raise activeDeadlineSeconds of the pod template.",
    ),
    _Rule(
        "CommandNotFound",
        _exit_in(127),
        _constant("exited with code 127: its command was not found"),
        "Check command and args against the image.",
    ),
    _Rule(
        "CommandNotExecutable",
        _exit_in(126),
        _constant("exited with code 126: its command could not be executed"),
        "Check the permissions of the command in the image.",
    ),
    _Rule(
        "Killed",
        lambda outcome: outcome.signal in {SIGKILL, SIGTERM},
        _describe_signal,
        "Find out what sent the signal: memory pressure on the node, a probe, or the rank's own supervisor.",
    ),
    _Rule(
        "Crashed",
        lambda outcome: outcome.signal is not None,
        _describe_signal,
        "Look at the log of this rank: its program crashed.",
    ),
    _Rule(
        "AppFailed",
        lambda outcome: outcome.exit_code not in {None, 0},
        _describe_exit,
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
    """Diagnose why one rank ended, without considering the other ranks."""
    rule = next(rule for rule in _OUTCOME_RULES if rule.applies(outcome))
    container = f" (container {outcome.container})" if outcome.container else ""
    where = f" on {outcome.node}" if outcome.node else ""
    error = f": {outcome.headline}" if outcome.headline else ""
    return Diagnosis(rule.code, f"{outcome.name}{container} {rule.describe(outcome)}{where}{error}", rule.remedy)


_VERDICT_REMEDIES: Final = {
    "JobDeleted": "Find out who deleted the Job: a user, a TTL, or a clean-up of the namespace.",
    REASON_JOB_MISSING: "Find out who deleted the Job of the role: a user, a TTL, or a clean-up of the namespace.",
    REASON_DELETED_ON_PURPOSE: "Clear the task to run the gang again.",
    "JobReplaced": "Find out who creates Jobs of this name.",
    REASON_JOB_DEADLINE: "Raise activeDeadlineSeconds, which also counts the time until all ranks run.",
    "BackoffLimitExceeded": "Look at the events of the Job: its pods left no outcome.",
}


def diagnose_end(verdict: Verdict, outcomes: Sequence[Outcome], failed: FailedRanks | None = None) -> Diagnosis:
    """Diagnose why the gang ended, from the root cause among the ranks or else from the verdict on the Job.

    :param failed: All ranks that failed, if `outcomes` has only some of them.
    """
    if verdict.kind is VerdictKind.SUCCEEDED:
        return Diagnosis("Succeeded", "")
    cause = (
        root_cause(outcomes) if verdict.kind is VerdictKind.FAILED and verdict.reason != REASON_JOB_DEADLINE else None
    )
    if verdict.reason == REASON_JOB_MISSING and cause is not None and cause.outcome is OutcomeKind.DELETED:
        cause = None  # the pods were deleted with their Job, or because the provider has ended the other roles
    if cause is None and verdict.reason == REASON_JOB_DEADLINE and verdict.limited_by:
        return Diagnosis(
            verdict.reason,
            f"The Job controller ended the gang, because the time limit of the task, {verdict.limited_by}, had passed "
            "and no triggerer had ended the gang",
            "Find out why no triggerer followed the gang, or raise the time limit of the task.",
        )
    if cause is None:
        summary = ": ".join(filter(None, (verdict.reason, verdict.message)))
        return Diagnosis(verdict.reason or "Failed", summary, _VERDICT_REMEDIES.get(verdict.reason, ""))
    found = diagnose_outcome(cause)
    others = len(FailedRanks(outcomes) if failed is None else failed) - (not cause.is_deleted_success)
    consequence = f"; {pluralize(others, 'other rank')} ended after it" if others > 0 else ""
    return Diagnosis(found.code, f"{found.summary}{consequence}", found.remedy)


_CAUSE_REMEDIES: Final = {
    WaitCause.CONTROLLER: "Check that the Job controller (kube-controller-manager) runs.",
    WaitCause.SUBMISSION: "Run the task again. The new try completes the submission.",
    WaitCause.HALTED: "Submit the gang again.",
    WaitCause.QUEUE: "Raise queue_timeout, or find out which workloads hold the quota of the queue.",
    WaitCause.QUEUE_REFUSED: "Correct queue_name or the resources of the gang, or ask the administrator of the queue.",
    WaitCause.WORKLOAD_MISSING: "Check that the WorkloadPriorityClass (queue_priority) and the PriorityClass "
    "(priority_class) exist and that the manager of Kueue runs; its log has the error.",
    WaitCause.REQUEUE: "Raise queue_timeout, or name a queue whose flavors have a Topology.",
    WaitCause.IMAGE: "Check the name and tag of the image, and image_pull_secrets.",
    WaitCause.CONFIG: "Correct what the message names, or create it if it is a ConfigMap or a Secret.",
    WaitCause.PODS_MISSING: "Look at the events of the Job: a quota or a webhook may refuse its pods.",
    WaitCause.UNSCHEDULABLE: "Ask for fewer workers or less of each resource, or raise assemble_timeout.",
    WaitCause.GATED: "Check that the controller that removes these scheduling gates runs. Those of kueue.x-k8s.io are "
    "removed by the manager of Kueue.",
    WaitCause.SCHEDULER: "Check that the scheduler runs and schedules gangs; raise assemble_timeout if it is busy.",
    WaitCause.STARTING: "Look at the pods for a volume that cannot be mounted, or raise assemble_timeout.",
    WaitCause.RANKS: "Raise run_timeout.",
    WaitCause.SIDECAR: "Let the container end with the main container, or make it an init container with "
    "restartPolicy: Always.",
}


_CORRECT_TOPOLOGY: Final = "Correct topology: name a level of the Topology of the queue's flavors, or another queue."
_REMEDIES_BY_TEXT: Final = {
    WaitCause.PODS_MISSING: {
        "no PriorityClass with name": "Create the PriorityClass, or correct priority_class.",
        "looking up service account": "Create the ServiceAccount, or correct service_account.",
    },
    WaitCause.QUEUE_REFUSED: {
        "requested level": _CORRECT_TOPOLOGY,
        "requested topology level": _CORRECT_TOPOLOGY,
        "does not support TopologyAwareScheduling": _CORRECT_TOPOLOGY,
    },
    WaitCause.UNSCHEDULABLE: {
        "Insufficient": _CAUSE_REMEDIES[WaitCause.UNSCHEDULABLE],
        "node affinity/selector": "Correct node_selector and affinity, or add the labels to nodes.",
        "untolerated taint": "Add tolerations for the taints of the nodes, or free nodes without these taints.",
        "volume node affinity": "Use volumes that the nodes with room can mount.",
        "unbound immediate PersistentVolumeClaims": "Check that the PersistentVolumeClaims can be bound: "
        "their StorageClass must exist and have a provisioner (kubectl describe pvc).",
        'persistentvolumeclaim "': "Create the PersistentVolumeClaim, or correct its name in volumes.",
        # Kubernetes 1.37 answers this for a gang that names a missing claim, and for a cluster without nodes.
        "PodGroupPostFilter plugins: not found": "Check that the PersistentVolumeClaims in volumes exist, and that the "
        "cluster has nodes: the scheduler of this release does not name the cause.",
    },
    WaitCause.SCHEDULER: {
        NOT_PROCESSED: f"Correct the annotation {ANNOTATION_QUEUE}, or check that the queue exists and Volcano runs.",
    },
}
"""By the cause and a text in the message about it. The first text that the message has decides."""


_NOT_READY_REMEDY: Final = (
    "Find out why not all pods become ready in the time that Kueue allows: their nodes, images, and readiness probes. "
    "Or raise assemble_timeout."
)
"""Of a gang that waits in its queue again when its time to assemble is used up."""
_QUEUE_REMEDIES: Final = {
    "RequeuingLimitExceeded": (
        "Ask for fewer workers or less of each resource, or ask the administrator of Kueue to raise timeout or "
        "requeuingStrategy.backoffLimitCount of waitForPodsReady."
    ),
    "MaximumExecutionTimeExceeded": (
        "Raise the label kueue.x-k8s.io/max-exec-time-seconds of the gang, or let its ranks do less work."
    ),
    "AdmissionCheck": "Ask the administrator of the queue why an AdmissionCheck has rejected the gang.",
    "": "Ask the administrator of the queue why Kueue does not let the gang run any more.",
}
"""By the reason of the condition Evicted with which Kueue gives a gang up."""


def diagnose_halt(reason: str, message: str) -> Diagnosis:
    """Diagnose why a gang was halted that has exceeded no deadline, by the two parts of the note on the Job."""
    remedies = _QUEUE_REMEDIES if reason == REASON_GIVEN_UP else {}
    remedy = next((remedy for part, remedy in remedies.items() if part in message), "")
    return Diagnosis(reason, f"The gang was halted: {message}", remedy)


def diagnose_timeout(phase: Phase, cause: WaitCause, summary: str) -> Diagnosis:
    """Diagnose why a phase took too long while the gang waited for `cause`."""
    was_stopped = phase is Phase.ASSEMBLING and cause in {WaitCause.QUEUE, WaitCause.QUEUE_REFUSED}
    by_cause = _NOT_READY_REMEDY if was_stopped else _CAUSE_REMEDIES.get(cause, "")
    by_text = _REMEDIES_BY_TEXT.get(cause, {}).items()
    remedy = next((remedy for text, remedy in by_text if text in summary), by_cause)
    return Diagnosis(f"Deadline.{phase}.{cause}", summary, remedy)
