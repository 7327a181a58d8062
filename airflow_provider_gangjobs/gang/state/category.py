"""Category: the stable name of why a gang waits or has ended.

Alerts, retry policies and dashboards match the names, so a name is never changed and never gets another meaning. A
later version may add names. `docs/troubleshooting.md` has a row for each.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Category(StrEnum):
    """Why a gang is in its state. The attribute `meaning` says it in a sentence."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.meaning = name, meaning
        return member

    # The submission and its controllers
    SUBMISSION_INCOMPLETE = "SubmissionIncomplete", "The submission of the gang stopped half-way."
    KEPT_SUSPENDED = "KeptSuspended", "The Job is kept suspended, and nobody has resumed it."
    CONTROLLER_SILENT = "ControllerSilent", "The Job controller has not processed the Job yet."
    PODS_REFUSED = "PodsRefused", "The API server refuses the pods of the Job."

    # The queue
    WAITING_FOR_QUOTA = "WaitingForQuota", "Other workloads hold the quota of the queue, or come first."
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota", "The gang requests more than the queue can ever give."
    NO_MATCHING_FLAVOR = "NoMatchingFlavor", "No flavor of the queue has what the gang asks for."
    QUEUE_MISCONFIGURED = "QueueMisconfigured", "The queue does not exist, or cannot serve this gang."
    QUEUE_HELD = "QueueHeld", "The queue is held (stopPolicy) or incomplete, and admits no workload."
    QUEUE_DEACTIVATED = "QueueDeactivated", "Kueue or an administrator has deactivated the Workload of the gang."
    PREEMPTED_BY_QUEUE = "PreemptedByQueue", "Kueue has stopped the gang in favour of another workload."
    PODS_READY_TIMEOUT = "PodsReadyTimeout", "Kueue has stopped the gang, because not all pods were ready in time."
    FLAVOR_MIGRATION = "FlavorMigration", "Kueue has stopped the gang to run it in a better flavor."
    ADMISSION_CHECK = "AdmissionCheck", "An AdmissionCheck or gate of the queue has not passed."
    REQUEUED = "Requeued", "The gang was stopped, and waits in its queue again."
    WORKLOAD_MISSING = "WorkloadMissing", "Kueue has made no Workload for the Job."

    # The scheduler
    INSUFFICIENT_RESOURCES = "InsufficientResources", "The nodes have too little room for all pods at once."
    NEVER_FITS = "NeverFits", "No set of the present nodes could hold all pods, even without any other pod."
    NODES_NOT_MATCHING = "NodesNotMatching", "Node labels, affinity or taints exclude the nodes."
    VOLUME_UNAVAILABLE = "VolumeUnavailable", "A volume, or what it names, does not exist or cannot be mounted."
    POD_GROUP_ERROR = "PodGroupError", "The scheduler cannot process the group of the pods."
    UNSCHEDULABLE = "Unschedulable", "The scheduler cannot place the gang for another reason, or names none."
    SCHEDULING_GATED = "SchedulingGated", "The pods have scheduling gates, which a controller has to remove."
    SCHEDULER_SILENT = "SchedulerSilent", "The scheduler has neither placed the pods nor said why."

    # The nodes
    IMAGE_PULL_FAILED = "ImagePullFailed", "A node cannot pull an image."
    POD_SANDBOX_FAILED = "PodSandboxFailed", "A node cannot create the sandbox of a pod, such as its network."
    CONFIG_INVALID = "ConfigInvalid", "A node cannot create a container from what the pod names."
    STARTING = "Starting", "The nodes pull images, mount volumes and create containers."
    RUNNING = "Running", "All ranks have started."
    SIDECAR_RUNNING = "SidecarRunning", "A rank has ended, and another container keeps its pod running."
    FINISHING = "Finishing", "The end of the gang is decided, and its pods are recorded."

    # The ends
    SUCCEEDED = "Succeeded", "The gang succeeded."
    APPLICATION_FAILED = "ApplicationFailed", "The program of a rank ended with an error or a signal."
    OUT_OF_MEMORY = "OutOfMemory", "A rank used more memory than its limit."
    STORAGE_EXCEEDED = "StorageExceeded", "A rank used more storage than its limit."
    START_FAILED = "StartFailed", "The command of a rank could not be run."
    POD_FAILED = "PodFailed", "A pod failed, and no program is known to be the cause."
    EVICTED = "Evicted", "A rank was evicted, or its node was drained or shut down."
    PREEMPTED = "Preempted", "A pod of higher priority took the place of a rank."
    NODE_LOST = "NodeLost", "A rank was lost with its node."
    POD_DELETED = "PodDeleted", "Somebody deleted a pod."
    JOB_DELETED = "JobDeleted", "Somebody deleted or replaced the Job."
    DEADLINE_EXCEEDED = "DeadlineExceeded", "The gang ran for longer than a time limit allows."
    HALTED = "Halted", "A person or a program stopped the gang."
    UNKNOWN = "Unknown", "The cause is not known."
