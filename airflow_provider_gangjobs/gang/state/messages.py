"""What others say in sentences: schedulers, Kueue, and the API server. No other module reads a sentence.

Each function reads one source, and returns which cause of `gang.state.reason` the sentence names, or its category.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.kube.text import cut_end, to_printable_line

TEXT_CHARACTERS_MAX: Final = 256
"""Limit of a message from the cluster, because schedulers list the reasons of every node."""


def to_line(message: str) -> str:
    """Return the message on one line, cut at `TEXT_CHARACTERS_MAX`."""
    return cut_end(to_printable_line(message), TEXT_CHARACTERS_MAX)


def to_clause(message: str) -> str:
    """Return the message as `to_line` does, without the full stop at its end."""
    return to_line(to_printable_line(message).rstrip("."))


# -- schedulers ------------------------------------------------------------------------------------------------------

# The scheduler's summary: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s)."
# Volcano writes "unavailable". The text after the first sentence is about preemption.
_NODES: Final = re.compile(
    r"(?<!\d)\d+/(?P<nodes>\d+) nodes are (?:un)?available: (?P<reasons>.*?)(?:\. .*|\.)?$", re.DOTALL
)
_REASON: Final = re.compile(r"^(?P<count>\d+) (?:node\(s\) )?(?P<what>.+)$", re.DOTALL)
# Kubernetes 1.37 answers this for a gang that names a missing claim, and for a cluster without nodes.
_CLAIM_OR_NODE_MISSING: Final = "PodGroupPostFilter plugins: not found"
_REFUSALS: Final = (
    (_CLAIM_OR_NODE_MISSING, "ClaimOrNodeMissing"),
    ("Insufficient", "InsufficientResources"),
    ("Too many pods", "InsufficientResources"),
    ("tasks in gang unschedulable", "InsufficientResources"),
    ("node affinity/selector", "NodesNotMatching"),
    ("untolerated taint", "TaintsNotTolerated"),
    ("volume node affinity", "VolumeOnOtherNodes"),
    ("unbound immediate PersistentVolumeClaims", "ClaimUnbound"),
    ('persistentvolumeclaim "', "ClaimMissing"),
)
"""Parts of the messages of the scheduler of Kubernetes and of Volcano. The first that a message has decides."""
# Kubernetes 1.37 names the plugin instead of a claim that does not exist.
_ABOUT_CLAIM: Final = re.compile(r"persistentvolumeclaim|DynamicResources", re.IGNORECASE)
# The scheduler of Kubernetes 1.37 says how many pods have found a node, and the one of 1.36 says it of each such pod.
_SCHEDULED: Final = re.compile(r"minCount \((?P<wanted>\d+)\) cannot be satisfied: (?P<scheduled>\d+) scheduled")
_WAITS_FOR_OTHERS: Final = "waiting for minCount pods from a gang to be scheduled"


class _ScheduledPods(NamedTuple):
    """How many pods of a gang the scheduler has found nodes for."""

    scheduled: int
    wanted: int


def cause_of_refusal(message: str) -> str:
    """Return why a scheduler cannot place pods, by its message or by the short form of the message."""
    return next((cause for part, cause in _REFUSALS if part in message), "Unschedulable")


def cause_of_group_error(message: str) -> str:
    """Return why a scheduler cannot process a group of pods, by the condition of the PodGroup."""
    return "ClaimOrNodeMissing" if _CLAIM_OR_NODE_MISSING in message else "PodGroupError"


def names_nodes(message: str) -> bool:
    """Return whether a scheduler's message says what is wrong with the nodes."""
    return _NODES.search(message) is not None


def is_about_claim(message: str) -> bool:
    """Return whether a scheduler's message is about a PersistentVolumeClaim."""
    return _ABOUT_CLAIM.search(message) is not None


def scheduled_pods(message: str) -> _ScheduledPods | None:
    found = _SCHEDULED.search(message)
    return _ScheduledPods(int(found["scheduled"]), int(found["wanted"])) if found else None


def waits_for_other_pods(message: str) -> bool:
    """Return whether the scheduler has found a node for a pod, and waits for the other pods of the gang."""
    return _WAITS_FOR_OTHERS in message


def summarize_refusal(message: str) -> str:
    """Return a short form of a scheduler's message, for example `Insufficient nvidia.com/gpu on 3 of 3 nodes`.

    A message in an unknown format is cut at `TEXT_CHARACTERS_MAX`.
    """
    found = _NODES.search(message)
    if found is None:
        return to_line(message)
    parts = [_REASON.match(part.strip(" .")) for part in re.split(r", (?=\d)", found["reasons"])]
    if not all(parts):
        return to_line(message)
    ordered = sorted((part for part in parts if part), key=lambda part: -int(part["count"]))
    return to_line("; ".join(f"{part['what']} on {part['count']} of {found['nodes']} nodes" for part in ordered))


# -- the API server, in Events of controllers ------------------------------------------------------------------------

_PODS_REFUSED: Final = (
    ("no PriorityClass with name", "PriorityClassMissing"),
    ("looking up service account", "ServiceAccountMissing"),
)
VOLUMES_ONLY: Final = "Unable to attach or mount volumes"
"""The beginning of what the kubelet repeats after two minutes, without the cause."""


def cause_of_refused_pods(message: str) -> str:
    """Return why the API server refuses the pods of a Job, by the Event of the Job controller."""
    return next((cause for part, cause in _PODS_REFUSED if part in message), "PodsRefused")


def cause_of_unbound_claim(message: str) -> str:
    """Return why a PersistentVolumeClaim cannot be bound, by an Event about the claim."""
    return "StorageClassMissing" if "storageclass" in message else "ClaimUnbound"


# -- Kueue -----------------------------------------------------------------------------------------------------------

_BY_REASON: Final = {
    "NoMatchingFlavor": Category.NO_MATCHING_FLAVOR,
    "ExceedsMaxQuota": Category.EXCEEDS_MAX_QUOTA,
    "Misconfigured": Category.QUEUE_MISCONFIGURED,
    "Suspended": Category.QUEUE_HELD,
    "OnHold": Category.QUEUE_HELD,
    "AdmissionGated": Category.ADMISSION_CHECK,
    "TopologyPlacementFailed": Category.INSUFFICIENT_RESOURCES,
    **dict.fromkeys(
        ("WaitingForQuota", "WaitingForPreemptedWorkloads", "WaitingForPodsReady", "PendingEvaluation"),
        Category.WAITING_FOR_QUOTA,
    ),
}
"""Reasons of the condition QuotaReserved in Kueue 0.20, and in 0.19 with UnadmittedWorkloadsObservability."""
_INADMISSIBLE: Final = "Inadmissible"
"""The reason in earlier versions for all that is wrong with a workload or its queue."""
_BY_TEXT: Final = (
    (re.compile(r"failed admission checks|Admission is gated"), Category.ADMISSION_CHECK),
    (re.compile(r"Queue \S* is inactive"), Category.QUEUE_HELD),
    (re.compile(r"Queue \S* (?:doesn't exist|not found)|ClusterQueue selector"), Category.QUEUE_MISCONFIGURED),
    (re.compile(r"LimitRange|must not exceed its limits"), Category.QUEUE_MISCONFIGURED),
    (re.compile(r"unavailable in ClusterQueue|no requested topology level"), Category.NO_MATCHING_FLAVOR),
)
"""Messages of Kueue 0.15 to 0.20. The first that matches decides."""
_BY_FLAVOR: Final = (
    (re.compile(r"allows? to fit (?:only|any of) \d+"), Category.INSUFFICIENT_RESOURCES),
    (re.compile(r"insufficient unused quota for \S+ in flavor ([^\s,]+)"), Category.WAITING_FOR_QUOTA),
    (re.compile(r"insufficient quota for \S+ in flavor ([^\s,]+)"), Category.EXCEEDS_MAX_QUOTA),
    (re.compile(r"(?<!in )[Ff]lavor (\S+) (?:doesn't|does not|not found|supports only)"), Category.NO_MATCHING_FLAVOR),
    # Up to the flavor, and not over another taint, so that the time is linear in the length of the message.
    (
        re.compile(r"untolerated taint (?:(?!untolerated taint ).)*? in flavor ([^\s,]+)"),
        Category.NO_MATCHING_FLAVOR,
    ),
)
"""What a message says about one flavor, the mildest first. A workload may wait for each flavor."""
_ABOUT_TOPOLOGY: Final = re.compile("requested (?:topology )?level|does not support TopologyAwareScheduling")
_POD_SET: Final = re.compile(r"^couldn't assign flavors to pod set \S+: ")


class _QueueRefusal(NamedTuple):
    """Why Kueue has not given quota to a workload."""

    category: Category
    is_about_topology: bool
    reason: str
    """Kueue's reason, if it says more than the message; else empty."""
    message: str


def read_queue_refusal(reason: str, message: str) -> _QueueRefusal:
    """Read the condition QuotaReserved of a Workload, or the Event that repeats it.

    Of several flavors, the one for which the gang may still wait decides, as in Kueue (`resolveNoFitReason`).
    """
    usual = Category.QUEUE_MISCONFIGURED if reason == _INADMISSIBLE else Category.WAITING_FOR_QUOTA
    by_message = _category_of(message) or usual
    category = _BY_REASON.get(reason) or by_message
    told = reason if category is not by_message else ""
    line = to_clause(_POD_SET.sub("", message))
    return _QueueRefusal(category, _ABOUT_TOPOLOGY.search(message) is not None, told, line)


def _category_of(message: str) -> Category | None:
    if (found := next((category for pattern, category in _BY_TEXT if pattern.search(message)), None)) is not None:
        return found
    worst: dict[str, int] = {}
    for severity, (pattern, _) in enumerate(_BY_FLAVOR):
        for match in pattern.finditer(message):
            worst[match[1] if match.lastindex else ""] = severity
    return _BY_FLAVOR[min(worst.values())][1] if worst else None
