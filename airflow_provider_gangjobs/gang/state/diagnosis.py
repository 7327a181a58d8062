"""Diagnosis of a gang by its state: by what it waits for, by the mark of a stop, or by the verdict on its Job. Pure.

One table maps a cause of waiting and a text in its sentence to a category and a remedy. The first text that the
sentence has decides, and the last one of each cause is empty. The mark on a stopped Job keeps cause and sentence, so a
triggerer that restarts makes the same diagnosis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.capacity import NEVER_FITS
from airflow_provider_gangjobs.gang.schedulers.external import ANNOTATION_QUEUE, NOT_PROCESSED
from airflow_provider_gangjobs.gang.state.category import Category, Diagnosis
from airflow_provider_gangjobs.gang.state.gang_jobs import REASON_JOB_MISSING
from airflow_provider_gangjobs.gang.state.phase import (
    REASON_DELETED,
    REASON_DELETED_ON_PURPOSE,
    REASON_REPLACED,
    Phase,
    VerdictKind,
)
from airflow_provider_gangjobs.gang.state.queue_wait import find_category
from airflow_provider_gangjobs.gang.state.stopped import REASON_JOB_DEADLINE, Stopped, Stopper
from airflow_provider_gangjobs.gang.state.waiting import NO_CAUSE_NAMED, POD_GROUP_ERRORS, WaitCause, parse_image

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.phase import Verdict
    from airflow_provider_gangjobs.gang.state.waiting import Wait

_FEWER: Final = "Ask for fewer workers or less of each resource, or raise assemble_timeout."
_CORRECT_TOPOLOGY: Final = "Correct topology: name a level of the Topology of the queue's flavors, or another queue."
_REFUSED_PODS: Final = "Look at the events of the Job: a quota or a webhook may refuse its pods."
_SCHEDULER: Final = "Check that the scheduler runs and schedules gangs; raise assemble_timeout if it is busy."
_GROUP_ERROR: Final = (
    "Correct what the message names: all pods of a gang need the same scheduler, priority and preemption policy. "
    "Otherwise look at the log of the scheduler."
)
_NO_WORKLOAD: Final = (
    "Check that the WorkloadPriorityClass (queue_priority) and the PriorityClass (priority_class) exist and that the "
    "manager of Kueue runs; its log has the error."
)
_CLAIMS_OR_NODES: Final = (
    "Check that the PersistentVolumeClaims in volumes exist, and that the cluster has nodes: the scheduler of this "
    "release does not name the cause."
)
_CREATE_CLAIM: Final = "Create the PersistentVolumeClaim, or correct its name in volumes."
_DESCRIBE_CLAIM: Final = "Check that the PersistentVolumeClaims can be bound: kubectl describe pvc shows why not."
_CORRECT_NODE_LABELS: Final = "Correct node_selector and affinity, or add the labels to nodes."
_TOLERATE: Final = "Add tolerations for the taints of the nodes, or free nodes without these taints."
_LARGER_NODES: Final = (
    "Request less for each rank, ask for fewer workers, or add larger nodes. To wait helps only if an autoscaler adds "
    "them."
)
_GATES: Final = (
    "Check that the controller that removes these scheduling gates runs. Those of kueue.x-k8s.io are removed by the "
    "manager of Kueue."
)
_BY_QUEUE: Final = None
"""The category is that of the sentence about the queue (`queue_wait.find_category`)."""

_RESUME: Final = "Resume the Job."
_RUN_AGAIN: Final = "Run the task again. The new try completes the submission."
_CREATE_PRIORITY: Final = "Create the PriorityClass, or correct priority_class."
_CREATE_ACCOUNT: Final = "Create the ServiceAccount, or correct service_account."
_MOUNTABLE: Final = "Use volumes that the nodes with room can mount."
_MOUNT: Final = "Create what the message names, or correct volumes."
_ATTACHABLE: Final = "End the pods that use the volume, or use one with the access mode ReadWriteMany."
_ASK_ABOUT_NODE: Final = (
    "Ask the administrator of the cluster to repair the network or the container runtime of the node."
)
_START_CONTROLLER: Final = "Check that the Job controller (kube-controller-manager) runs."
_FIND_HOLDERS: Final = "Raise queue_timeout, or find out which workloads hold the quota of the queue."
_CORRECT_QUEUE: Final = "Correct queue_name or the resources of the gang, or ask the administrator of the queue."
_CORRECT_CONFIG: Final = "Correct what the message names, or create it if it is a ConfigMap or a Secret."
_CREATE_CLASS: Final = (
    "Create the StorageClass, or create the PersistentVolumeClaim again with another storageClassName."
)
_CORRECT_VOLCANO: Final = f"Correct the annotation {ANNOTATION_QUEUE}, or check that the queue exists and Volcano runs."
_LOOK_AT_VOLUMES: Final = "Look at the pods for a volume that cannot be mounted, or raise assemble_timeout."
_END_SIDECAR: Final = (
    "Let the container end with the main container, or make it an init container with restartPolicy: Always."
)

_RULES: Final[tuple[tuple[WaitCause, str, Category | None, str], ...]] = (
    (WaitCause.CONTROLLER, "", Category.CONTROLLER_SILENT, _START_CONTROLLER),
    (WaitCause.SUBMISSION, "until its user resumes it", Category.KEPT_SUSPENDED, _RESUME),
    (WaitCause.SUBMISSION, "", Category.SUBMISSION_INCOMPLETE, _RUN_AGAIN),
    (WaitCause.STOPPED, "", Category.HALTED, "Submit the gang again."),
    (WaitCause.QUEUE, "", _BY_QUEUE, _FIND_HOLDERS),
    (WaitCause.QUEUE_REFUSED, "requested level", _BY_QUEUE, _CORRECT_TOPOLOGY),
    (WaitCause.QUEUE_REFUSED, "requested topology level", _BY_QUEUE, _CORRECT_TOPOLOGY),
    (WaitCause.QUEUE_REFUSED, "does not support TopologyAwareScheduling", _BY_QUEUE, _CORRECT_TOPOLOGY),
    (WaitCause.QUEUE_REFUSED, "", _BY_QUEUE, _CORRECT_QUEUE),
    (WaitCause.WORKLOAD_MISSING, "", Category.WORKLOAD_MISSING, _NO_WORKLOAD),
    (WaitCause.IMAGE, "", Category.IMAGE_PULL_FAILED, "Check the name and tag of the image, and image_pull_secrets."),
    (WaitCause.CONFIG, "", Category.CONFIG_INVALID, _CORRECT_CONFIG),
    (WaitCause.NODE, "FailedAttachVolume", Category.VOLUME_UNAVAILABLE, _ATTACHABLE),
    (WaitCause.NODE, "Volume", Category.VOLUME_UNAVAILABLE, _MOUNT),
    (WaitCause.NODE, "FailedMount", Category.VOLUME_UNAVAILABLE, _MOUNT),
    (WaitCause.NODE, "", Category.POD_SANDBOX_FAILED, _ASK_ABOUT_NODE),
    (WaitCause.PODS_MISSING, "no PriorityClass with name", Category.PODS_REFUSED, _CREATE_PRIORITY),
    (WaitCause.PODS_MISSING, "looking up service account", Category.PODS_REFUSED, _CREATE_ACCOUNT),
    (WaitCause.PODS_MISSING, "could not be created", Category.PODS_REFUSED, _REFUSED_PODS),
    (WaitCause.PODS_MISSING, "", Category.CONTROLLER_SILENT, _REFUSED_PODS),
    # Kubernetes 1.37 answers this for a gang that names a missing claim, and for a cluster without nodes.
    (WaitCause.UNSCHEDULABLE, "PodGroupPostFilter plugins: not found", Category.VOLUME_UNAVAILABLE, _CLAIMS_OR_NODES),
    (WaitCause.UNSCHEDULABLE, "no node matches the node", Category.NODES_NOT_MATCHING, _CORRECT_NODE_LABELS),
    (WaitCause.UNSCHEDULABLE, "does not tolerate the taints", Category.NODES_NOT_MATCHING, _TOLERATE),
    (WaitCause.UNSCHEDULABLE, NEVER_FITS, Category.NEVER_FITS, _LARGER_NODES),
    *((WaitCause.UNSCHEDULABLE, f"{reason}: ", Category.POD_GROUP_ERROR, _GROUP_ERROR) for reason in POD_GROUP_ERRORS),
    (WaitCause.UNSCHEDULABLE, "Insufficient", Category.INSUFFICIENT_RESOURCES, _FEWER),
    (WaitCause.UNSCHEDULABLE, "Too many pods", Category.INSUFFICIENT_RESOURCES, _FEWER),
    (WaitCause.UNSCHEDULABLE, "tasks in gang unschedulable", Category.INSUFFICIENT_RESOURCES, _FEWER),
    (WaitCause.UNSCHEDULABLE, "node affinity/selector", Category.NODES_NOT_MATCHING, _CORRECT_NODE_LABELS),
    (WaitCause.UNSCHEDULABLE, "untolerated taint", Category.NODES_NOT_MATCHING, _TOLERATE),
    (WaitCause.UNSCHEDULABLE, "volume node affinity", Category.VOLUME_UNAVAILABLE, _MOUNTABLE),
    (WaitCause.UNSCHEDULABLE, "unbound immediate PersistentVolumeClaims", Category.VOLUME_UNAVAILABLE, _DESCRIBE_CLAIM),
    (WaitCause.UNSCHEDULABLE, 'persistentvolumeclaim "', Category.VOLUME_UNAVAILABLE, _CREATE_CLAIM),
    (WaitCause.UNSCHEDULABLE, "", Category.UNSCHEDULABLE, _FEWER),
    (WaitCause.VOLUME, "does not exist", Category.VOLUME_UNAVAILABLE, _CREATE_CLAIM),
    (WaitCause.VOLUME, "storageclass", Category.VOLUME_UNAVAILABLE, _CREATE_CLASS),
    (WaitCause.VOLUME, "", Category.VOLUME_UNAVAILABLE, _DESCRIBE_CLAIM),
    (WaitCause.GATED, "", Category.SCHEDULING_GATED, _GATES),
    (WaitCause.SCHEDULER, NOT_PROCESSED, Category.SCHEDULER_SILENT, _CORRECT_VOLCANO),
    (WaitCause.SCHEDULER, NO_CAUSE_NAMED, Category.UNSCHEDULABLE, _SCHEDULER),
    (WaitCause.SCHEDULER, "", Category.SCHEDULER_SILENT, _SCHEDULER),
    (WaitCause.STARTING, "", Category.STARTING, _LOOK_AT_VOLUMES),
    (WaitCause.RANKS, "", Category.RUNNING, "Raise run_timeout."),
    (WaitCause.SIDECAR, "", Category.SIDECAR_RUNNING, _END_SIDECAR),
    (WaitCause.ENDING, "", Category.FINISHING, ""),
    (WaitCause.HARVEST, "", Category.FINISHING, ""),
    (WaitCause.NOTHING, "", Category.UNKNOWN, ""),
)
"""By the cause and a text in the sentence: the category, and what to do if the wait lasts."""

UNEVENTFUL: Final = frozenset({Category.STARTING, Category.RUNNING, Category.FINISHING, Category.SUCCEEDED})
"""Categories of gangs that wait for nothing out of the ordinary."""
_IN_TIME: Final = UNEVENTFUL - {Category.STARTING}

_NOT_READY_REMEDY: Final = (
    "Find out why not all pods become ready in the time that Kueue allows: their nodes, images, and readiness probes. "
    "Or raise assemble_timeout."
)
"""Of a gang that waits in its queue again when its time to assemble is used up."""
_FIT_REQUEUING: Final = (
    "Ask for fewer workers or less of each resource, or ask the administrator of Kueue to raise timeout or "
    "requeuingStrategy.backoffLimitCount of waitForPodsReady."
)
_RAISE_EXECUTION_TIME: Final = (
    "Raise the label kueue.x-k8s.io/max-exec-time-seconds of the gang, or let its ranks do less work."
)
_ASK_ABOUT_CHECK: Final = "Ask the administrator of the queue why an AdmissionCheck has rejected the gang."
_ASK_ABOUT_QUEUE: Final = "Ask the administrator of the queue why Kueue does not let the gang run any more."
_GIVEN_UP_REMEDIES: Final = {
    "DeactivatedDueToRequeuingLimitExceeded": _FIT_REQUEUING,
    "DeactivatedDueToMaximumExecutionTimeExceeded": _RAISE_EXECUTION_TIME,
    "DeactivatedDueToAdmissionCheck": _ASK_ABOUT_CHECK,
}
"""By the reason for which Kueue has given a gang up."""


_FIND_DELETION: Final = "Find out who deleted the Job{}: a user, a TTL, or a clean-up of the namespace."
_RAISE_DEADLINE: Final = "Raise activeDeadlineSeconds, which also counts the time until all ranks run."
_VERDICTS: Final = {
    REASON_DELETED: (Category.JOB_DELETED, _FIND_DELETION.format("")),
    REASON_JOB_MISSING: (Category.JOB_DELETED, _FIND_DELETION.format(" of the role")),
    REASON_DELETED_ON_PURPOSE: (Category.JOB_DELETED, "Clear the task to run the gang again."),
    REASON_REPLACED: (Category.JOB_DELETED, "Find out who creates Jobs of this name."),
    REASON_JOB_DEADLINE: (Category.DEADLINE_EXCEEDED, _RAISE_DEADLINE),
    "BackoffLimitExceeded": (Category.UNKNOWN, "Look at the events of the Job: its pods left no outcome."),
}
"""By the reason of a verdict: the category, and what to do."""


def diagnose_verdict(verdict: Verdict) -> Diagnosis:
    """Diagnose the end of a Job without the outcomes of its pods."""
    if verdict.kind is VerdictKind.SUCCEEDED:
        return Diagnosis(Category.SUCCEEDED, "", since=verdict.at, code="Succeeded")
    if verdict.reason == REASON_JOB_DEADLINE and verdict.limited_by:
        return Diagnosis(
            Category.DEADLINE_EXCEEDED,
            f"The Job controller ended the gang, because the time limit of the task, {verdict.limited_by}, had passed "
            "and no triggerer had ended the gang",
            "Find out why no triggerer followed the gang, or raise the time limit of the task.",
            verdict.message,
            verdict.at,
            verdict.reason,
        )
    category, remedy = _VERDICTS.get(verdict.reason, (Category.UNKNOWN, ""))
    summary = ": ".join(filter(None, (verdict.reason, verdict.message)))
    return Diagnosis(category, summary, remedy, verdict.message, verdict.at, verdict.reason or "Failed")


def diagnose_wait(wait: Wait, *, since: datetime | None = None) -> Diagnosis:
    """Diagnose a gang by what it waits for.

    :param since: When the phase began.
    """
    if wait.stopped is not None:
        return diagnose_stop(wait.stopped, since=since)
    category, remedy = _find(wait.cause, wait.text)
    remedy = "" if category in UNEVENTFUL else remedy
    return Diagnosis(category, wait.text or category.meaning, remedy, wait.reason, wait.since or since, wait.cause)


def diagnose_timeout(phase: Phase, cause: WaitCause, summary: str, *, since: datetime | None = None) -> Diagnosis:
    """Diagnose why a phase took too long while the gang waited for `cause`."""
    category, remedy = _find(cause, summary)
    if phase is Phase.ASSEMBLING and cause in {WaitCause.QUEUE, WaitCause.QUEUE_REFUSED}:
        category, remedy = Category.PODS_READY_TIMEOUT, _NOT_READY_REMEDY
    category = Category.DEADLINE_EXCEEDED if category in _IN_TIME else category
    return Diagnosis(category, summary, remedy, summary, since, f"Deadline.{phase}.{cause}")


def stopped_by_deadline(phase: Phase, cause: WaitCause, text: str) -> Stopped:
    """Return the mark of a gang whose phase took too long while the gang waited for `cause`."""
    found = diagnose_timeout(phase, cause, text)
    image = parse_image(text) if cause is WaitCause.IMAGE else ""
    data = {"cause": str(cause)} | ({"image": image} if image else {})
    return Stopped(Stopper.DEADLINE, text, found.category, found.code, phase, data)


def diagnose_stop(stopped: Stopped, *, since: datetime | None = None) -> Diagnosis:
    """Diagnose why a gang was stopped, by the mark on its Job."""
    if stopped.phase in set(Phase) and stopped.data.get("cause") in set(WaitCause):
        return diagnose_timeout(Phase(stopped.phase), WaitCause(stopped.data["cause"]), stopped.text, since=since)
    remedy = _GIVEN_UP_REMEDIES.get(stopped.data.get("reason", ""), _ASK_ABOUT_QUEUE)
    return Diagnosis(
        stopped.category,
        f"The gang was stopped: {stopped.text}",
        remedy if stopped.by is Stopper.QUEUE else "",
        stopped.text,
        since,
        stopped.code,
    )


def _find(cause: WaitCause, text: str) -> tuple[Category, str]:
    rows = ((category, remedy) for of, part, category, remedy in _RULES if of is cause and part in text)
    category, remedy = next(rows)
    if category is not None:
        return category, remedy
    usual = Category.WAITING_FOR_QUOTA if cause is WaitCause.QUEUE else Category.QUEUE_MISCONFIGURED
    return find_category(text) or usual, remedy
