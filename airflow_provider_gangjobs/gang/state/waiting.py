"""Why a gang does not run yet: what its scheduler, its nodes, or its queue say. Pure.

Pods that the scheduler keeps out of its queue until the whole gang exists have no condition and no event (PreEnqueue),
so the absence of both is evidence too. The most severe cause comes first.

In a queue of Kueue, the conditions of Kueue's Workload say why the gang waits. The texts of Kueue 0.15 and 0.19 were
observed with the real manager (`tests/queues`).

Kueue itself stops a gang whose pods are not all ready in time (`waitForPodsReady`), and counts the time of these runs
in the Workload. `assemble_timeout` adds them up. A stop for another reason ends the sum: `ANNOTATION_ASSEMBLY_BASELINE`
then holds what the Workload counted until that end.

Schedulers, Kueue, and the API server also speak in sentences, which no other module reads. Each function for them reads
one source, and returns which cause of `gang.state.reason` the sentence names, or its category.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.capacity import Capacity
from airflow_provider_gangjobs.gang.record import AssemblyBaseline, read_mark
from airflow_provider_gangjobs.gang.schedulers import names_cause, says_refused, separate_scheduler_of
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.reason import (
    GIVEN_UP,
    IN_QUEUE,
    QUEUE_NEVER,
    UNPLACED,
    Reason,
    because,
    count_of_stops,
    reason_of_stop,
    stopped_by_queue,
)
from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.pods import Counts, PodIndex
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import Condition, EventView, KueueWorkloadView, PodGroupView, PodView


TEXT_CHARACTERS_MAX: Final = 256
"""Limit of a message from the cluster, because schedulers list the reasons of every node."""


def to_line(message: str) -> str:
    """Return the message on one line, cut at `TEXT_CHARACTERS_MAX`."""
    return cut_end(to_printable_line(message), TEXT_CHARACTERS_MAX)


def to_clause(message: str) -> str:
    """Return the message as `to_line` does, without the full stop at its end."""
    return to_line(to_printable_line(message).rstrip("."))


# -- the sentences of schedulers -------------------------------------------------------------------------------------

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


class _ScheduledPods(Struct, frozen=True):
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


def scheduled_pods(message: str) -> _ScheduledPods | None:
    found = _SCHEDULED.search(message)
    return _ScheduledPods(int(found["scheduled"]), int(found["wanted"])) if found else None


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


# -- the sentences of the API server, in Events of controllers -------------------------------------------------------

_PODS_REFUSED: Final = (
    ("no PriorityClass with name", "PriorityClassMissing"),
    ("looking up service account", "ServiceAccountMissing"),
)
VOLUMES_ONLY: Final = "Unable to attach or mount volumes"
"""The beginning of what the kubelet repeats after two minutes, without the cause."""


def cause_of_refused_pods(message: str) -> str:
    """Return why the API server refuses the pods of a Job, by the Event of the Job controller."""
    return next((cause for part, cause in _PODS_REFUSED if part in message), "PodsRefused")


# -- the sentences of Kueue ------------------------------------------------------------------------------------------

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


class _QueueRefusal(Struct, frozen=True):
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


# -- why a gang that was started does not run ------------------------------------------------------------------------

POD_GROUP_ERRORS: Final = ("PodGroupError", "SchedulerError")
"""Reasons of a PodGroup that the scheduler cannot process, since Kubernetes 1.38 and before."""


class Evidence(Struct, frozen=True):
    """What explains why a gang waits, in addition to its Job, its pods and its PodGroup, as far as it was read."""

    events: Sequence[EventView] = ()
    """Events of the Job, of its pods, and of Kueue's Workload if the Workload cannot be read."""
    queue_workload: KueueWorkloadView | None = None
    """The Workload that Kueue has made for the Job."""
    queue_position: int | None = None
    """The position in the ClusterQueue, from 1; `None` if it is unknown."""
    shows_queue: bool = False
    """Kueue's Workloads were read, so the Job has none if `queue_workload` is `None`."""
    capacity: Capacity | None = None
    """Whether the gang fits into the cluster; `None` if this is not known."""
    earlier_refusal: Reason | None = None
    """The cause that the pods named when the gang was observed before, if the scheduler has overwritten it since."""
    claim_problem: Reason | None = None
    """Which PersistentVolumeClaim of the gang cannot be used, if that is known (`explain_claim`)."""
    autoscaler: str = ""
    """What the autoscaler of the cluster says about the pods of the gang, in its own words."""
    ran_after_start: datetime | None = None
    """The start of the Job after which all ranks had started. Their pods may be deleted by now."""


NO_EVIDENCE: Final = Evidence()


class WaitInputs(Struct, frozen=True):
    """Objects from which the rules find the cause."""

    job: StoredGang | None
    pods: PodIndex
    podgroup: PodGroupView | None
    counts: Counts
    evidence: Evidence = NO_EVIDENCE


def explain_assembly(inputs: WaitInputs) -> Reason:
    """Return why not all ranks have started, by the first rule that finds a cause."""
    found = next(filter(None, (rule(inputs) for rule in _RULES)), None)
    if found is None:
        starting = inputs.counts.ranks - inputs.counts.started
        return because("Starting", ranks=pluralize(starting, "rank"))
    return _explain_refusal(found, inputs) if found.cause in UNPLACED else found


def _explain_refusal(refusal: Reason, inputs: WaitInputs) -> Reason:
    """Return why the scheduler cannot place the gang: by a claim, by what never fits, or as the scheduler says."""
    problem, capacity = inputs.evidence.claim_problem, inputs.evidence.capacity
    if problem is not None and _ABOUT_CLAIM.search(refusal.evidence):
        return problem
    if capacity is not None and capacity.never_fits:
        return because(capacity.cause, evidence=capacity.text, never_fits="yes")
    return refusal


def explain_claim(claim: str, namespace: str, message: str = "") -> Reason:
    """Return why a PersistentVolumeClaim cannot be used.

    :param message: Why the claim cannot be bound; empty if it does not exist.
    """
    unbound = "StorageClassMissing" if "storageclass" in message else "ClaimUnbound"
    cause = unbound if message else "ClaimMissing"
    return because(cause, claim=claim, namespace=namespace, evidence=to_line(message))


def known_capacity(reason: Reason, inputs: WaitInputs) -> Capacity | None:
    """Return how much is free of what a gang waits for; `None` if this is not known, or if it can never fit."""
    if reason.cause not in UNPLACED or "claim" in reason.data:
        return None
    capacity = inputs.evidence.capacity
    if capacity is not None and capacity.never_fits:
        return None
    return capacity if capacity is not None and capacity.text else _find_partial_room(inputs)


def _find_partial_room(inputs: WaitInputs) -> Capacity | None:
    """Return how many pods the scheduler itself has found nodes for; `None` if it does not say."""
    messages = (*inputs.pods.refusals, _group_reason(inputs))
    found = next(filter(None, map(scheduled_pods, messages)), None)
    waiting = sum(count for message, count in inputs.pods.refusals.items() if _WAITS_FOR_OTHERS in message)
    if found is None and not waiting:
        return None
    room, wanted = (found.scheduled, found.wanted) if found else (waiting, inputs.counts.ranks)
    text = f"The scheduler has found nodes for {room} of {wanted} pods"
    return Capacity(text=text, room=room, ranks=wanted)


def explain_run(pods: PodIndex) -> Reason:
    """Return what a gang waits for whose ranks have all started."""
    found = sorted(pods.lingering.values(), key=podutil.rank_order)
    if not found:
        return because("Running")
    ends = [end for pod in found if (end := podutil.main_end(pod)) is not None]
    return because(
        "SidecarRunning",
        where=_name_pod(found[0]),
        exit_code=ends[0].exit_code,
        others=", ".join(podutil.keeps_running(found[0])),
        more=len(found) - 1 or None,
        since=min(filter(None, (end.finished_at for end in ends)), default=None),
    )


def _find_container_error(inputs: WaitInputs, cause: str, reasons: frozenset[str]) -> Reason | None:
    pods = inputs.pods.pods_with_errors.values()
    found = [(pod, *waits) for pod in pods if (waits := podutil.container_waits(pod, reasons))]
    if not found:
        return None
    pod, container, waiting = min(found, key=lambda item: podutil.rank_order(item[0]))
    return because(
        cause,
        said=waiting.reason,
        image=_image_of(pod, container) if waiting.reason in podutil.IMAGE_REASONS else "",
        where=_name_pod(pod),
        more=len(found) - 1 or None,
        evidence=to_line(waiting.message),
    )


_NODE_CAUSES: Final = {
    "FailedAttachVolume": "VolumeNotAttached",
    **dict.fromkeys(("FailedMapVolume", "FailedMount", "VolumePermissionChangeInProgress"), "VolumeNotMounted"),
    **dict.fromkeys(
        ("FailedCreatePodContainer", "FailedCreatePodSandBox", "FailedPrepareDynamicResources", "NetworkNotReady"),
        "PodSandboxFailed",
    ),
}
"""By the reasons of the Events of a pod that its node cannot prepare. The status of such a pod does not say why."""


def _find_node_problem(inputs: WaitInputs) -> Reason | None:
    pods = inputs.pods.preparing
    of_pods = (each for each in inputs.evidence.events if each.involved_object.uid in pods)
    events = [each for each in of_pods if each.reason in _NODE_CAUSES]
    if not events:
        return None
    last = find_last([each for each in events if not each.message.startswith(VOLUMES_ONLY)] or events)
    where = _name_pod(pods[last.involved_object.uid])
    return because(_NODE_CAUSES[last.reason], said=last.reason, where=where, evidence=to_line(last.message))


def _image_of(pod: PodView, container: str) -> str:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return next((one.image for one in containers if one.name == container), "")


def _name_pod(pod: PodView) -> str:
    role = pod.metadata.labels.gang_role or ""
    return podutil.name_rank(podutil.rank_of(pod), role, podutil.role_rank_of(pod), pod=pod.metadata.name)


def _find_missing_pods(inputs: WaitInputs) -> Reason | None:
    missing = inputs.counts.ranks - inputs.counts.created
    if missing <= 0:
        return None
    pods = pluralize(missing, "pod")
    refused = [event for event in inputs.evidence.events if event.reason == "FailedCreate"]
    if not refused:
        return because("PodsNotCreated", missing=pods)
    message = find_last(refused).message
    return because(cause_of_refused_pods(message), missing=pods, evidence=to_line(message))


def _find_refusal(inputs: WaitInputs) -> Reason | None:
    group = inputs.podgroup.status.conditions if inputs.podgroup else ()
    failed = next((item for item in group if item.status == "False" and item.reason in POD_GROUP_ERRORS), None)
    if failed is not None:
        message = to_line(failed.message)
        return because(cause_of_group_error(message), said=failed.reason, evidence=message)
    # The message of most pods only says that other pods of the gang are missing: since 1.36, and with other schedulers.
    # The messages about nodes contain the cause.
    messages = {message: count for message, count in inputs.pods.refusals.items() if names_cause(message)}
    causes = {message: count for message, count in messages.items() if names_nodes(message)} or messages
    if causes:
        return _refused(min(causes, key=lambda message: (-causes[message], message)))
    reason = _group_reason(inputs)
    if reason:
        return _refused(reason)
    if any(says_refused(message) for message in inputs.pods.refusals):
        return inputs.evidence.earlier_refusal or because("NoCauseNamed")
    return None


def _refused(message: str) -> Reason:
    said = summarize_refusal(message)
    return because(cause_of_refusal(said), evidence=said)


def find_named_refusal(events: Iterable[EventView]) -> Reason | None:
    """Return the cause that the latest of a scheduler's Events names about pods; `None` if none names a cause."""
    named = [event for event in events if names_cause(event.message) and names_nodes(event.message)]
    return _refused(find_last(named).message) if named else None


_AUTOSCALER: Final = {
    "TriggeredScaleUp": ("pod triggered scale-up: ", "The autoscaler adds nodes"),
    "NotTriggerScaleUp": ("pod didn't trigger scale-up: ", "The autoscaler adds no nodes"),
}
"""By the reasons of Cluster Autoscaler's Events: how their messages begin, and what they mean."""


def find_autoscaler_words(events: Iterable[EventView]) -> str:
    """Return what the autoscaler has said last about pods; empty if it has said nothing."""
    own = [event for event in events if event.reason in _AUTOSCALER]
    if not own:
        return ""
    last = find_last(own)
    begin, meaning = _AUTOSCALER[last.reason]
    return f"{meaning}: {to_clause(last.message.removeprefix(begin))}"


def find_last(events: Iterable[EventView]) -> EventView:
    """Return the event that was seen last. There must be one."""
    return max(events, key=lambda event: event.seen.timestamp() if event.seen else 0.0)


def _group_reason(inputs: WaitInputs) -> str:
    if inputs.podgroup is None:
        return ""
    scheduler = separate_scheduler_of(inputs.job.placement if inputs.job else None)
    if scheduler is not None:
        return scheduler.group_reason(inputs.podgroup)
    refused = (item for item in inputs.podgroup.status.conditions if item.status == "False" and item.message)
    return next((item.message for item in refused), "")


def _find_gates(inputs: WaitInputs) -> Reason | None:
    gates = inputs.pods.gates
    return because("SchedulingGated", pods=gates.total(), gates="; ".join(sorted(gates))) if gates else None


def _find_scheduler_silence(inputs: WaitInputs) -> Reason | None:
    if inputs.counts.placed >= inputs.counts.ranks:
        return None
    if inputs.pods.refusals:
        return because("NoCauseYet")
    scheduler = separate_scheduler_of(inputs.job.placement if inputs.job else None)
    silence = scheduler.explain_silence(inputs.podgroup) if scheduler is not None else None
    if silence is not None:
        cause, queue = silence
        return because(cause, queue=queue)
    return because("SchedulerSilent", at_once=_placed_at_once(inputs.podgroup) if inputs.podgroup else None)


def placed_at_once(job: StoredGang, group: PodGroupView | None) -> int:
    """Return how many ranks of a gang are placed together: 1 without gang scheduling."""
    is_gang = job.placement.startswith("gang:")  # the format of `PlacementDecision`
    return (_placed_at_once(group) if group else None) or (job.ranks if is_gang else 1)


def _placed_at_once(group: PodGroupView) -> int | None:
    gang = group.spec.scheduling_policy.gang
    return gang.min_count if gang else group.spec.min_member


_RULES: Final[tuple[Callable[[WaitInputs], Reason | None], ...]] = (
    partial(_find_container_error, cause="ImagePullFailed", reasons=podutil.IMAGE_REASONS),
    partial(_find_container_error, cause="ConfigInvalid", reasons=podutil.CONFIG_REASONS),
    _find_node_problem,
    _find_missing_pods,
    _find_refusal,
    _find_gates,
    _find_scheduler_silence,
)


# -- why a gang waits in its queue -----------------------------------------------------------------------------------


class _Stops(Struct, frozen=True):
    """How often Kueue has stopped a gang since its Workload exists."""

    before_ready: int = 0
    """Not all pods became ready in the time that `waitForPodsReady` of Kueue's configuration allows."""
    after_ready: int = 0
    """All pods had been ready, and one of them was not ready for longer than `waitForPodsReady` allows."""
    others: int = 0
    """Kueue has preempted the gang, or has stopped the gang for yet another reason."""


_REFUSAL_EVENT: Final = "Warning"
"""Type of the Events with which Kueue says why it does not admit a Workload. Their reasons depend on a feature gate."""
PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
"""Reason for which Kueue stops a gang by `waitForPodsReady`."""
_WAIT_FOR_RECOVERY: Final = "WaitForRecovery"
"""The underlying cause of such a stop if all pods had been ready before."""
_EVICTION_EVENT: Final = "EvictedDueTo"
"""Reasons of the Events with which Kueue says that it stops a Workload begin with this."""
_DECISIONS: Final = frozenset({"QuotaReserved", "Admitted", "Evicted"})
_EVICTIONS: Final = {
    "Preempted": Category.PREEMPTED_BY_QUEUE,
    "FlavorMigration": Category.FLAVOR_MIGRATION,
    "ClusterQueueStopped": Category.QUEUE_HELD,
    "LocalQueueStopped": Category.QUEUE_HELD,
    "AdmissionCheck": Category.ADMISSION_CHECK,
}
"""By the reason of the condition Evicted."""


def explain_suspension(gang: StoredGang, evidence: Evidence = NO_EVIDENCE) -> Reason:
    """Return why a Job is suspended, and who resumes it."""
    workload = evidence.queue_workload
    if gang.stopped is not None and gang.is_stopped:
        return reason_of_stop(gang.stopped)
    if gang.queue and workload is None and evidence.shows_queue:
        return because("WorkloadMissing", queue=gang.queue)
    if gang.queue:
        return explain_queue(gang.queue, workload, evidence.events, position=evidence.queue_position)
    if workload is not None:
        return because("ManagedWithoutQueue")
    if gang.is_suspended and gang.record.is_kept_suspended:
        return because("KeptSuspended")
    if gang.is_suspended_again:
        return because("SuspendedAgain")
    return because("SubmissionIncomplete" if gang.is_suspended else "JobNotResumed")


def queued_uid(gang: StoredGang) -> str:
    """Return the UID of the object that Kueue admits: the JobSet of the roles, if it is known, or else the Job."""
    if not gang.record.has_job_set:
        return gang.ref.uid
    owners = (owner for one in gang.jobs_with_pods for owner in one.metadata.owner_references)
    return next((owner.uid for owner in owners if owner.controller), gang.ref.uid)


def waits_for_kueue(gang: StoredGang) -> bool:
    """Return whether Kueue's Workload may say why the gang waits."""
    if gang.queue is None:
        return gang.is_suspended_again
    return gang.is_suspended or gang.status.start_time is None


def explain_queue(
    queue: str,
    workload: KueueWorkloadView | None,
    events: Iterable[EventView] = (),
    *,
    position: int | None = None,
) -> Reason:
    """Return why a Job waits in its LocalQueue.

    :param events: Events of the Workload, which are used where the Workload itself cannot be read.
    :param position: The position in the ClusterQueue, from 1, if it is known.
    """
    found = _explain_events(events) if workload is None else _explain_workload(workload)
    known = {"queue": queue} | ({"position": str(position)} if position and found.cause in IN_QUEUE else {})
    return replace(found, data={**found.data, **known})


def evicted_at(workload: KueueWorkloadView | None) -> datetime | None:
    """Return the time at which Kueue has taken the quota back, if it has not given it again."""
    evicted = _find(workload, "Evicted", "True") if workload is not None else None
    return evicted.last_transition_time if evicted else None


def has_queue_decision(workload: KueueWorkloadView | None) -> bool:
    """Return whether Kueue has decided about the Job. Kueue 0.19 writes the condition PodsReady before that."""
    return workload is not None and any(item.type in _DECISIONS for item in workload.status.conditions)


def holds_quota(workload: KueueWorkloadView) -> bool:
    return _find(workload, "QuotaReserved", "True") is not None


def count_stops(workload: KueueWorkloadView | None) -> _Stops:
    """Return how often Kueue has stopped the gang; never, if the Workload is not known."""
    before_ready = after_ready = others = 0
    for stops in workload.status.scheduling_stats.evictions if workload is not None else ():
        if stops.reason != PODS_READY_TIMEOUT:
            others += stops.count
        elif stops.underlying_cause == _WAIT_FOR_RECOVERY:
            after_ready += stops.count
        else:
            before_ready += stops.count
    return _Stops(before_ready, after_ready, others)


def describe_stops(workload: KueueWorkloadView | None) -> str:
    """Return the sentence on how often Kueue has stopped the gang by `waitForPodsReady`."""
    stops = count_stops(workload)
    counts = count_of_stops(stops.before_ready, stops.after_ready)
    return f"Kueue has stopped the gang {counts} (waitForPodsReady)" if counts else ""


def given_up(workload: KueueWorkloadView | None, last_assembly: str = "") -> Stopped | None:
    """Return the mark of a gang that Kueue itself has given up for good, after a limit of time or of tries.

    :param last_assembly: The last line about the gang while it assembled.
    """
    if workload is None or workload.spec.active:
        return None
    evicted = _find(workload, "Evicted", "True")
    if evicted is None or not evicted.reason.startswith(GIVEN_UP):
        return None
    evidence = f"Before, the gang was {last_assembly}" if last_assembly else ""
    message = f"{to_clause(evicted.message)} ({evicted.reason})"
    return stopped_by_queue(evicted.reason, ". ".join(filter(None, (message, describe_stops(workload), evidence))))


def _explain_events(events: Iterable[EventView]) -> Reason:
    told = [event for event in events if event.message and (event.type == _REFUSAL_EVENT or _eviction_of(event))]
    if not told:
        return because("QueueWaits")
    last = find_last(told)
    eviction = _eviction_of(last)
    return _explain_eviction(eviction, last.message) if eviction else _explain_missing_quota(last.reason, last.message)


def _eviction_of(event: EventView) -> str:
    return event.reason.removeprefix(_EVICTION_EVENT) if event.reason.startswith(_EVICTION_EVENT) else ""


def _explain_workload(workload: KueueWorkloadView) -> Reason:
    evicted, refused = _find(workload, "Evicted", "True"), _find(workload, "QuotaReserved", "False")
    if not workload.spec.active:
        return because("WorkloadInactive", workload=workload.metadata.name, evidence=_message(evicted or refused))
    # Evicted stays true until the next admission. QuotaReserved repeats its message until Kueue judges the gang again.
    if evicted is not None and (refused is None or refused.message in {"", evicted.message}):
        return _explain_eviction(evicted.reason, evicted.message, count_stops(workload))
    if _find(workload, "Admitted", "True") is not None:
        return because("QueueAdmitted")
    if holds_quota(workload):
        return because("QueueChecks", evidence=_message(_find(workload, "Admitted", "False")))
    if refused is not None and refused.message:
        return _explain_missing_quota(refused.reason, refused.message)
    return because("QueueWaits")


def _message(condition: Condition | None) -> str:
    return to_clause(condition.message) if condition else ""


def _explain_eviction(reason: str, message: str, stops: _Stops = _Stops()) -> Reason:  # noqa: B008
    if reason == PODS_READY_TIMEOUT:
        before, after = stops.before_ready or None, stops.after_ready or None
        return because("NotReadyInTime", before_ready=before, after_ready=after)
    return because("QueueStops", category=_EVICTIONS.get(reason), reason=reason, evidence=to_clause(message))


def _explain_missing_quota(reason: str, message: str) -> Reason:
    """Explain why a workload has no quota."""
    found = read_queue_refusal(reason, message)
    cause = "QueueRefuses" if found.category in QUEUE_NEVER else "QueuePending"
    topology = "yes" if found.is_about_topology else ""
    return because(cause, category=found.category, reason=found.reason, topology=topology, evidence=found.message)


def _find(workload: KueueWorkloadView, kind: str, status: str) -> Condition | None:
    found = (item for item in workload.status.conditions if item.type == kind and item.status == status)
    return next(found, None)


def earlier_assembly_s(gang: StoredGang | None, workload: KueueWorkloadView | None) -> float:
    """Return for how long the gang has assembled in runs that Kueue has stopped before all pods were ready, in seconds.

    Only the runs after the last other stop count.
    """
    if gang is None or workload is None:
        return 0.0
    stops, baseline = count_stops(workload), _baseline_of(gang)
    if not stops.before_ready or stops.others + stops.after_ready != baseline.other_stops:
        return 0.0
    return float(max(workload.status.admitted_before_s - baseline.admitted_s, 0))


def _baseline_of(gang: StoredGang) -> AssemblyBaseline:
    return read_mark(AssemblyBaseline, gang.view.metadata.annotations.assembly_baseline)


def next_assembly_baseline(gang: StoredGang, workload: KueueWorkloadView | None) -> AssemblyBaseline | None:
    """Return the baseline that the Job must get after Kueue has stopped the gang for another reason.

    While Kueue stops a gang, the time of that run is not counted yet.
    """
    if workload is None or gang.is_over or (evicted_at(workload) is not None and holds_quota(workload)):
        return None
    stops = count_stops(workload)
    other_stops = stops.others + stops.after_ready
    if other_stops == _baseline_of(gang).other_stops:
        return None
    return AssemblyBaseline(other_stops, workload.status.admitted_before_s)
