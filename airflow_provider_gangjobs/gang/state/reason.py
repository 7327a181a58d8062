"""Reason: why a gang waits or has ended, and what to do.

    found = because("ImagePullFailed", image="trainer:1", where="rank 0", said="ErrImagePull", evidence="no such image")
    found.category, found.summary, found.remedy

Whoever finds a reason gives its cause and data: a name of the table below, and what Kubernetes or the queue says in its
own fields. The sentences are made here, when somebody reads them, and nothing depends on their words. A row of the
table has the usual category of the cause; a reason of a queue may have another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime  # noqa: TC003
from typing import Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.schedulers import VOLCANO_QUEUE
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.stopped import Stopped, Stopper
from airflow_provider_gangjobs.kube.text import pluralize


class Reason(Struct, frozen=True):
    """Why a gang is in its state."""

    category: Category
    cause: str
    """What exactly; a key of `CAUSES`."""
    data: Mapping[str, str] = {}
    """What the sentences are about, such as the image or the queue."""
    evidence: str = ""
    """What the cluster or the program says, in its own words."""
    since: datetime | None = None
    code: str = ""
    """The `reason` of events and errors, which is finer than the category. Waits have none."""

    @property
    def text(self) -> str:
        """What happened, or what the gang waits for, in one sentence; empty if the category says it all."""
        make = CAUSES[self.cause].text
        known = _Known(self.data, evidence=self.evidence)
        return (make.format_map(known) if isinstance(make, str) else make(known)).rstrip(": ")

    @property
    def summary(self) -> str:
        """As `text`, and never empty, unless the gang has succeeded."""
        return self.text or ("" if self.category is Category.SUCCEEDED else self.category.meaning)

    @property
    def remedy(self) -> str:
        """What to do; empty if there is nothing to do."""
        cause = CAUSES[self.cause]
        is_uneventful = self.category in UNEVENTFUL and cause.category in UNEVENTFUL
        return "" if is_uneventful else cause.remedy_of(_Known(self.data, evidence=self.evidence))


class _Known(dict[str, str]):
    """Data of a reason. What is not known is empty."""

    def __init__(self, data: Mapping[str, str], **more: str) -> None:
        super().__init__(data, **more)

    def __missing__(self, name: str) -> str:
        return ""


_Make = Callable[[_Known], str]


class _Cause(Struct, frozen=True):
    """One row: the usual category of a cause, and its sentences, with the data in braces."""

    category: Category
    text: str | _Make
    remedy: str | _Make = ""

    def remedy_of(self, known: _Known) -> str:
        return self.remedy.format_map(known) if isinstance(self.remedy, str) else self.remedy(known)


def because(
    cause: str,
    *,
    category: Category | None = None,
    evidence: str = "",
    since: datetime | None = None,
    code: str = "",
    **data: object,
) -> Reason:
    """Return a reason.

    :param category: The category, if it is not the usual one of the cause.
    :param data: What the sentences are about. Values that are `None` or empty are left out.
    """
    texts = {name: str(value) for name, value in data.items() if value not in (None, "")}
    return Reason(category or CAUSES[cause].category, cause, texts, evidence, since, code)


# -- groups ----------------------------------------------------------------------------------------------------------

UNEVENTFUL: Final = frozenset({Category.STARTING, Category.RUNNING, Category.FINISHING, Category.SUCCEEDED})
"""Categories of gangs that wait for nothing out of the ordinary."""
QUEUE_NEVER: Final = frozenset(
    {
        Category.EXCEEDS_MAX_QUOTA,
        Category.NO_MATCHING_FLAVOR,
        Category.QUEUE_MISCONFIGURED,
        Category.QUEUE_HELD,
        Category.QUEUE_DEACTIVATED,
    }
)
"""Categories of gangs that their queue cannot admit until somebody changes the gang or the queue."""
NEVER: Final = QUEUE_NEVER | {Category.NEVER_FITS}
"""Categories of gangs that wait for what never comes."""
IN_QUEUE: Final = frozenset({"QueueWaits", "QueuePending", "QueueStops", "NotReadyInTime", "QueueChecks"})
"""Causes of gangs that their queue may admit later."""
REFUSED_BY_QUEUE: Final = frozenset({"QueueRefuses", "WorkloadInactive", "ManagedWithoutQueue"})
NO_CAUSE_NAMED: Final = frozenset({"NoCauseNamed", "NoCauseYet"})
"""Causes of gangs of which the scheduler says that it cannot place them, and not why."""
UNPLACED: Final = frozenset(
    {
        "ClaimMissing",
        "ClaimOrNodeMissing",
        "ClaimUnbound",
        "InsufficientResources",
        "NeverFits",
        "NoCauseNamed",
        "NodesNotMatching",
        "PodGroupError",
        "StorageClassMissing",
        "TaintsNotTolerated",
        "Unschedulable",
        "VolumeOnOtherNodes",
    }
)
"""Causes for which the scheduler cannot place a gang."""


# -- sentences that depend on the data -------------------------------------------------------------------------------


def _of_claim(known: _Known, problem: str) -> str:
    """Return the sentence about a claim that was found, or what the scheduler says."""
    return f"PersistentVolumeClaim {known['claim']} {problem}" if known["claim"] else known["evidence"]


def _position(known: _Known) -> str:
    return f". Position {known['position']} in the ClusterQueue" if known["position"] else ""


def _in_queue(known: _Known, text: str) -> str:
    return f"Kueue queue {known['queue']} {text}{_position(known)}"


def _because_of(known: _Known) -> str:
    return f": {known['evidence']}" if known["evidence"] else ""


def _by_kueue(known: _Known) -> str:
    return f" ({known['reason']})" if known["reason"] else ""


def count_of_stops(before_ready: int, after_ready: int) -> str:
    """Return how often Kueue has stopped a gang by `waitForPodsReady`; empty if it never has."""
    counts = ((before_ready, "before all pods were ready"), (after_ready, "after all pods had been ready"))
    return " and ".join(f"{pluralize(count, 'time')} {when}" for count, when in counts if count)


def _not_ready_in_time(known: _Known) -> str:
    stops = count_of_stops(int(known["before_ready"] or 0), int(known["after_ready"] or 0))
    text = "has stopped the gang, because not all pods were ready in time (waitForPodsReady), and lets all ranks run"
    return _in_queue(known, f"{text} again later{f': {stops}' if stops else ''}")


def _container_waits(known: _Known) -> str:
    image = f' of image "{known["image"]}"' if known["image"] else ""
    more = f" and {known['more']} more" if known["more"] else ""
    return f"{known['said']}{image} at {known['where']}{more}: {known['evidence']}"


def _gated(known: _Known) -> str:
    count = int(known["pods"])
    return f"{pluralize(count, 'pod')} {'has' if count == 1 else 'have'} scheduling gates: {known['gates']}"


def _waits_for_scheduler(known: _Known) -> str:
    if known["at_once"]:
        return f"The scheduler waits until {known['at_once']} pods can be placed at once"
    return "Waits for the scheduler"


def _sidecar_runs(known: _Known) -> str:
    more = int(known["more"] or 0)
    same = f". The same holds for {pluralize(more, 'other rank')}" if more else ""
    others = known["others"]
    return (
        f"The main container of {known['where']} has ended with exit code {known['exit_code']}, and container "
        f"{others} keeps its pod running{same}. If {others} is a sidecar, let it end with the main container, or make "
        "it an init container with restartPolicy: Always"
    )


def _of_job(known: _Known) -> str:
    return ": ".join(filter(None, (known["said"], known["evidence"])))


def _of_rank(what: str) -> _Make:
    """Return the sentence about a rank that has ended, which `what` completes."""

    def make(known: _Known) -> str:
        container = f" (container {known['container']})" if known["container"] else ""
        where = f" on {known['node']}" if known["node"] else ""
        error = f": {known['error']}" if known["error"] else ""
        others = int(known["others"] or 0)
        consequence = f"; {pluralize(others, 'other rank')} ended after it" if others > 0 else ""
        return f"{known['rank']}{container} {what.format_map(known)}{where}{error}{consequence}"

    return make


def _memory_remedy(known: _Known) -> str:
    if known["container"]:
        return (
            f"Raise limits.memory of container {known['container']} in pod_overrides, in the manifest, or in its "
            "webhook."
        )
    return "Raise resources.memory, or let each rank use less memory."


def _passed_deadline(known: _Known) -> str:
    cause = CAUSES.get(known["waits_for"])
    return "" if cause is None or cause.remedy is _passed_deadline else cause.remedy_of(known)


# -- what to do ------------------------------------------------------------------------------------------------------

_FEWER: Final = "Ask for fewer workers or less of each resource, or raise assemble_timeout."
_CORRECT_TOPOLOGY: Final = "Correct topology: name a level of the Topology of the queue's flavors, or another queue."
_CORRECT_QUEUE: Final = "Correct queue_name or the resources of the gang, or ask the administrator of the queue."
_REFUSED_PODS: Final = "Look at the events of the Job: a quota or a webhook may refuse its pods."
_SCHEDULER: Final = "Check that the scheduler runs and schedules gangs; raise assemble_timeout if it is busy."
_CREATE_CLAIM: Final = "Create the PersistentVolumeClaim, or correct its name in volumes."
_DESCRIBE_CLAIM: Final = "Check that the PersistentVolumeClaims can be bound: kubectl describe pvc shows why not."
_RESUME: Final = "Resume the Job."
_START_CONTROLLER: Final = "Check that the Job controller (kube-controller-manager) runs."
_FIND_HOLDERS: Final = "Raise queue_timeout, or find out which workloads hold the quota of the queue."
_FIND_DELETION: Final = "Find out who deleted the Job: a user, a TTL, or a clean-up of the namespace."
_LOOK_AT_LOG: Final = "Look at the log of this rank."


def _refused_remedy(known: _Known) -> str:
    return _CORRECT_TOPOLOGY if known["topology"] else _CORRECT_QUEUE


CAUSES: Final[Mapping[str, _Cause]] = {
    # The submission and its controllers
    "KeptSuspended": _Cause(
        Category.KEPT_SUSPENDED,
        "The Job was submitted to stay suspended: it waits until its user resumes it",
        _RESUME,
    ),
    "SuspendedAgain": _Cause(
        Category.KEPT_SUSPENDED,
        "The Job was started and then suspended: it waits until its user resumes it",
        _RESUME,
    ),
    "SubmissionIncomplete": _Cause(
        Category.SUBMISSION_INCOMPLETE,
        "The Job is suspended: its submission is not complete",
        "Run the task again. The new try completes the submission.",
    ),
    "JobNotProcessed": _Cause(
        Category.CONTROLLER_SILENT, "Waits for the Job controller to process the Job", _START_CONTROLLER
    ),
    "JobNotResumed": _Cause(Category.CONTROLLER_SILENT, "Waits for the Job controller to resume it", _START_CONTROLLER),
    "PodsNotCreated": _Cause(Category.CONTROLLER_SILENT, "{missing} not created yet", _REFUSED_PODS),
    "PodsRefused": _Cause(Category.PODS_REFUSED, "{missing} could not be created: {evidence}", _REFUSED_PODS),
    "PriorityClassMissing": _Cause(
        Category.PODS_REFUSED,
        "{missing} could not be created: {evidence}",
        "Create the PriorityClass, or correct priority_class.",
    ),
    "ServiceAccountMissing": _Cause(
        Category.PODS_REFUSED,
        "{missing} could not be created: {evidence}",
        "Create the ServiceAccount, or correct service_account.",
    ),
    # The queue
    "QueueWaits": _Cause(
        Category.WAITING_FOR_QUOTA,
        lambda known: f"Waits for admission by Kueue queue {known['queue']}{_position(known)}",
        _FIND_HOLDERS,
    ),
    "QueuePending": _Cause(
        Category.WAITING_FOR_QUOTA,
        lambda known: _in_queue(known, f"does not admit the gang yet{_by_kueue(known)}: {known['evidence']}"),
        _FIND_HOLDERS,
    ),
    "QueueRefuses": _Cause(
        Category.QUEUE_MISCONFIGURED,
        lambda known: _in_queue(known, f"cannot admit the gang{_by_kueue(known)}: {known['evidence']}"),
        _refused_remedy,
    ),
    "QueueStops": _Cause(
        Category.REQUEUED,
        lambda known: _in_queue(
            known, f"has stopped the gang and lets it run again later ({known['reason']}: {known['evidence']})"
        ),
        _FIND_HOLDERS,
    ),
    "NotReadyInTime": _Cause(Category.PODS_READY_TIMEOUT, _not_ready_in_time, _FIND_HOLDERS),
    "QueueChecks": _Cause(
        Category.ADMISSION_CHECK,
        lambda known: _in_queue(known, f"has reserved quota, and waits for its checks{_because_of(known)}"),
        _FIND_HOLDERS,
    ),
    "QueueAdmitted": _Cause(
        Category.CONTROLLER_SILENT,
        "Kueue queue {queue} has admitted the gang, and lets it run",
        _START_CONTROLLER,
    ),
    "WorkloadInactive": _Cause(
        Category.QUEUE_DEACTIVATED,
        lambda known: _in_queue(
            known,
            f"does not let the gang run, because its Workload {known['workload']} is inactive{_because_of(known)}",
        ),
        _CORRECT_QUEUE,
    ),
    "ManagedWithoutQueue": _Cause(
        Category.QUEUE_MISCONFIGURED,
        "Kueue has suspended the Job: it lets only Jobs of a queue run here (manageJobsWithoutQueueName), and the gang "
        "has no queue. Give queue_name, or name the queue in the connection",
        _CORRECT_QUEUE,
    ),
    "WorkloadMissing": _Cause(
        Category.WORKLOAD_MISSING,
        "Kueue queue {queue} does not know the gang: Kueue has made no Workload for the Job. The WorkloadPriorityClass "
        "or the PriorityClass of the gang may not exist, or the manager of Kueue does not run",
        "Check that the WorkloadPriorityClass (queue_priority) and the PriorityClass (priority_class) exist and that "
        "the manager of Kueue runs; its log has the error.",
    ),
    # The scheduler
    "InsufficientResources": _Cause(Category.INSUFFICIENT_RESOURCES, "{evidence}", _FEWER),
    "NeverFits": _Cause(
        Category.NEVER_FITS,
        "{evidence}",
        "Request less for each rank, ask for fewer workers, or add larger nodes. To wait helps only if an autoscaler "
        "adds them.",
    ),
    "NodesNotMatching": _Cause(
        Category.NODES_NOT_MATCHING,
        "{evidence}",
        "Correct node_selector and affinity, or add the labels to nodes.",
    ),
    "TaintsNotTolerated": _Cause(
        Category.NODES_NOT_MATCHING,
        "{evidence}",
        "Add tolerations for the taints of the nodes, or free nodes without these taints.",
    ),
    "ClaimMissing": _Cause(
        Category.VOLUME_UNAVAILABLE,
        lambda known: _of_claim(known, f"does not exist in namespace {known['namespace']}"),
        _CREATE_CLAIM,
    ),
    "ClaimUnbound": _Cause(
        Category.VOLUME_UNAVAILABLE,
        lambda known: _of_claim(known, f"cannot be bound: {known['evidence']}"),
        _DESCRIBE_CLAIM,
    ),
    "StorageClassMissing": _Cause(
        Category.VOLUME_UNAVAILABLE,
        lambda known: _of_claim(known, f"cannot be bound: {known['evidence']}"),
        "Create the StorageClass, or create the PersistentVolumeClaim again with another storageClassName.",
    ),
    "ClaimOrNodeMissing": _Cause(
        Category.VOLUME_UNAVAILABLE,
        "{evidence}",
        "Check that the PersistentVolumeClaims in volumes exist, and that the cluster has nodes: the scheduler of this "
        "release does not name the cause.",
    ),
    "VolumeOnOtherNodes": _Cause(
        Category.VOLUME_UNAVAILABLE, "{evidence}", "Use volumes that the nodes with room can mount."
    ),
    "PodGroupError": _Cause(
        Category.POD_GROUP_ERROR,
        "{said}: {evidence}",
        "Correct what the message names: all pods of a gang need the same scheduler, priority and preemption policy. "
        "Otherwise look at the log of the scheduler.",
    ),
    "Unschedulable": _Cause(Category.UNSCHEDULABLE, "{evidence}", _FEWER),
    "NoCauseNamed": _Cause(
        Category.UNSCHEDULABLE, "The scheduler cannot place the gang, and no pod names the cause", _FEWER
    ),
    "NoCauseYet": _Cause(
        Category.UNSCHEDULABLE, "The scheduler cannot place the gang, and no pod names the cause", _SCHEDULER
    ),
    "SchedulingGated": _Cause(
        Category.SCHEDULING_GATED,
        _gated,
        "Check that the controller that removes these scheduling gates runs. Those of kueue.x-k8s.io are removed by "
        "the manager of Kueue.",
    ),
    "SchedulerSilent": _Cause(Category.SCHEDULER_SILENT, _waits_for_scheduler, _SCHEDULER),
    "VolcanoSilent": _Cause(
        Category.SCHEDULER_SILENT,
        "Volcano has not processed the PodGroup: its queue {queue} may not exist, or Volcano does not run",
        f"Correct the annotation {VOLCANO_QUEUE}, or check that the queue exists and Volcano runs.",
    ),
    "YuniKornReserves": _Cause(
        Category.SCHEDULER_SILENT,
        "Waits until YuniKorn has reserved a place for each pod; YuniKorn's placeholder pods in the namespace show the "
        "cause",
        _SCHEDULER,
    ),
    # The nodes
    "ImagePullFailed": _Cause(
        Category.IMAGE_PULL_FAILED, _container_waits, "Check the name and tag of the image, and image_pull_secrets."
    ),
    "ConfigInvalid": _Cause(
        Category.CONFIG_INVALID,
        _container_waits,
        "Correct what the message names, or create it if it is a ConfigMap or a Secret.",
    ),
    "VolumeNotAttached": _Cause(
        Category.VOLUME_UNAVAILABLE,
        _container_waits,
        "End the pods that use the volume, or use one with the access mode ReadWriteMany.",
    ),
    "VolumeNotMounted": _Cause(
        Category.VOLUME_UNAVAILABLE, _container_waits, "Create what the message names, or correct volumes."
    ),
    "PodSandboxFailed": _Cause(
        Category.POD_SANDBOX_FAILED,
        _container_waits,
        "Ask the administrator of the cluster to repair the network or the container runtime of the node.",
    ),
    "Starting": _Cause(
        Category.STARTING,
        "{ranks} starting: nodes pull images and create containers",
        "Look at the pods for a volume that cannot be mounted, or raise assemble_timeout.",
    ),
    "Running": _Cause(Category.RUNNING, "", "Raise run_timeout."),
    "SidecarRunning": _Cause(
        Category.SIDECAR_RUNNING,
        _sidecar_runs,
        "Let the container end with the main container, or make it an init container with restartPolicy: Always.",
    ),
    "Finishing": _Cause(Category.FINISHING, _of_job),
    # The ends of ranks
    "AppFailed": _Cause(Category.APPLICATION_FAILED, _of_rank("exited with code {exit_code}{said}"), _LOOK_AT_LOG),
    "RestartedTooOften": _Cause(
        Category.APPLICATION_FAILED,
        _of_rank("was restarted too often for backoffLimit ({restarted})"),
        "Look at the log of this rank: its program failed each time.",
    ),
    "Crashed": _Cause(
        Category.APPLICATION_FAILED,
        _of_rank("was ended by signal {signal} ({signal_name})"),
        "Look at the log of this rank: its program crashed.",
    ),
    "Killed": _Cause(
        Category.APPLICATION_FAILED,
        _of_rank("was ended by signal {signal} ({signal_name})"),
        "Find out what sent the signal: memory pressure on the node, a probe, or the rank's own supervisor.",
    ),
    "OOMKilled": _Cause(Category.OUT_OF_MEMORY, _of_rank("ran out of memory (exit code {exit_code})"), _memory_remedy),
    "OverLimit": _Cause(
        Category.STORAGE_EXCEEDED,
        _of_rank("was evicted: it used more storage than its own limit{said}"),
        "Raise the limit of ephemeral-storage or the sizeLimit of the emptyDir volume, or write less data.",
    ),
    "StartError": _Cause(
        Category.START_FAILED,
        _of_rank("could not start its command"),
        "Check command, args and working directory against the image.",
    ),
    "CommandNotFound": _Cause(
        Category.START_FAILED,
        _of_rank("exited with code 127: its command was not found"),
        "Check command and args against the image.",
    ),
    "CommandNotExecutable": _Cause(
        Category.START_FAILED,
        _of_rank("exited with code 126: its command could not be executed"),
        "Check the permissions of the command in the image.",
    ),
    "PodFailed": _Cause(
        Category.POD_FAILED,
        _of_rank("failed ({said})"),
        "Look at the pod's message and the events of its node.",
    ),
    "PodDeadline": _Cause(
        Category.DEADLINE_EXCEEDED,
        _of_rank("ran past its pod's activeDeadlineSeconds"),
        "Raise activeDeadlineSeconds of the pod template.",
    ),
    "Preempted": _Cause(
        Category.PREEMPTED,
        _of_rank("was preempted by a pod of higher priority"),
        "Set a higher priority_class to prevent preemption.",
    ),
    "NodeShutDown": _Cause(
        Category.EVICTED,
        _of_rank("was ended because its node shut down"),
        "Find out why the node was shut down.",
    ),
    "NodeLacksResources": _Cause(
        Category.EVICTED,
        _of_rank("was refused by its node, which lacked resources ({condition})"),
        "Request the amount of memory and disk that the rank really uses.",
    ),
    "NodePressure": _Cause(
        Category.EVICTED,
        _of_rank("was evicted because its node was low on {resource}"),
        "Request the amount of memory and disk that the rank really uses.",
    ),
    "Evicted": _Cause(
        Category.EVICTED,
        _of_rank("was evicted ({said})"),
        "Find out who or what evicted the pod, for example a drain of its node.",
    ),
    "NodeLost": _Cause(
        Category.NODE_LOST,
        _of_rank("was lost: its end was not observed"),
        "Find out why the node went away.",
    ),
    "PodDeleted": _Cause(
        Category.POD_DELETED,
        _of_rank("had its pod deleted"),
        "Find out who deleted the pod: a person, a drain or a clean-up.",
    ),
    "PodDeletedAfterSuccess": _Cause(
        Category.POD_DELETED,
        _of_rank("had its pod deleted after its main container had succeeded, before its other containers had ended"),
        "Find out who deleted the pod, and let its other containers end with the main container.",
    ),
    # The ends of Jobs
    "Succeeded": _Cause(Category.SUCCEEDED, ""),
    "JobDeleted": _Cause(Category.JOB_DELETED, _of_job, _FIND_DELETION),
    "JobOfRoleDeleted": _Cause(
        Category.JOB_DELETED, _of_job, _FIND_DELETION.replace("deleted the Job", "deleted the Job of the role")
    ),
    "GangDeleted": _Cause(Category.JOB_DELETED, _of_job, "Clear the task to run the gang again."),
    "JobReplaced": _Cause(Category.JOB_DELETED, _of_job, "Find out who creates Jobs of this name."),
    "JobDeadline": _Cause(
        Category.DEADLINE_EXCEEDED,
        _of_job,
        "Raise activeDeadlineSeconds, which also counts the time until all ranks run.",
    ),
    "TaskDeadline": _Cause(
        Category.DEADLINE_EXCEEDED,
        "The Job controller ended the gang, because the time limit of the task, {limited_by}, had passed and no "
        "triggerer had ended the gang",
        "Find out why no triggerer followed the gang, or raise the time limit of the task.",
    ),
    "NoOutcome": _Cause(Category.UNKNOWN, _of_job, "Look at the events of the Job: its pods left no outcome."),
    "JobFailed": _Cause(Category.UNKNOWN, _of_job),
    # The stops
    "PassedDeadline": _Cause(Category.DEADLINE_EXCEEDED, "{evidence}", _passed_deadline),
    "AssemblyTookTooLong": _Cause(
        Category.PODS_READY_TIMEOUT,
        "{evidence}",
        "Find out why not all pods become ready in the time that Kueue allows: their nodes, images, and readiness "
        "probes. Or raise assemble_timeout.",
    ),
    "RequeuingLimit": _Cause(
        Category.QUEUE_DEACTIVATED,
        "The gang was stopped: {evidence}",
        "Ask for fewer workers or less of each resource, or ask the administrator of Kueue to raise timeout or "
        "requeuingStrategy.backoffLimitCount of waitForPodsReady.",
    ),
    "QueueTimeLimit": _Cause(
        Category.DEADLINE_EXCEEDED,
        "The gang was stopped: {evidence}",
        "Raise the label kueue.x-k8s.io/max-exec-time-seconds of the gang, or let its ranks do less work.",
    ),
    "CheckRejected": _Cause(
        Category.ADMISSION_CHECK,
        "The gang was stopped: {evidence}",
        "Ask the administrator of the queue why an AdmissionCheck has rejected the gang.",
    ),
    "GivenUpByQueue": _Cause(
        Category.QUEUE_DEACTIVATED,
        "The gang was stopped: {evidence}",
        "Ask the administrator of the queue why Kueue does not let the gang run any more.",
    ),
    "Stopped": _Cause(Category.HALTED, "The gang was stopped: {evidence}"),
    # Of other processes
    "Told": _Cause(Category.UNKNOWN, "{text}", "{remedy}"),
}
"""Every cause, in the order of the categories."""


# -- stops -----------------------------------------------------------------------------------------------------------


def stopped_by_deadline(phase: str, reason: Reason, line: str) -> Stopped:
    """Return the mark of a gang whose phase took too long.

    :param phase: The `Phase` whose deadline has passed.
    :param reason: What the gang waited for.
    :param line: The line about the gang when the deadline passed.
    """
    category = reason.category
    if phase == "assembling" and reason.cause in IN_QUEUE | REFUSED_BY_QUEUE:
        category = Category.PODS_READY_TIMEOUT
    elif category in UNEVENTFUL - {Category.STARTING}:
        category = Category.DEADLINE_EXCEEDED
    data = {**reason.data, "waits_for": reason.cause}
    return Stopped(Stopper.DEADLINE, line, category, f"Deadline.{phase}", phase, data)


def reason_of_stop(stopped: Stopped, *, since: datetime | None = None) -> Reason:
    """Return why a gang was stopped, by the mark on its Job."""
    cause = "Stopped"
    if stopped.by is Stopper.DEADLINE:
        is_requeued = stopped.category is Category.PODS_READY_TIMEOUT
        cause = "AssemblyTookTooLong" if is_requeued and stopped.phase == "assembling" else "PassedDeadline"
    elif stopped.by is Stopper.QUEUE:
        cause = _GIVEN_UP.get(stopped.data.get("reason", ""), "GivenUpByQueue")
    return Reason(stopped.category, cause, stopped.data, stopped.text, since, stopped.code)


GIVEN_UP: Final = "DeactivatedDueTo"
"""Reasons of Kueue's condition Evicted begin with this, if Kueue itself has deactivated a Workload."""
_GIVEN_UP: Final = {
    f"{GIVEN_UP}RequeuingLimitExceeded": "RequeuingLimit",
    f"{GIVEN_UP}MaximumExecutionTimeExceeded": "QueueTimeLimit",
    f"{GIVEN_UP}AdmissionCheck": "CheckRejected",
}


def stopped_by_queue(reason: str, text: str) -> Stopped:
    """Return the mark of a gang that Kueue has given up.

    :param reason: The reason of Kueue's condition Evicted.
    """
    category = CAUSES[_GIVEN_UP.get(reason, "GivenUpByQueue")].category
    return Stopped(Stopper.QUEUE, text, category, "DeactivatedByQueue", data={"reason": reason})


def reword(reason: Reason, *, summary: str, remedy: str | None = None) -> Reason:
    """Return a reason with other words, which a view knows better.

    :param remedy: What to do. By default this stays.
    """
    words = {"text": summary, "remedy": reason.remedy if remedy is None else remedy}
    return because("Told", category=reason.category, since=reason.since, code=reason.code, **words)
