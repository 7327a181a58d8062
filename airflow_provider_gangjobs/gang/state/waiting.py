"""Why a gang does not run yet, with the evidence from the cluster. The most severe cause comes first.

Pods that the scheduler keeps out of its queue until the whole gang exists have no condition and no event (PreEnqueue),
so the absence of both is evidence too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.capacity import Capacity
from airflow_provider_gangjobs.gang.schedulers.external import names_cause, says_refused, separate_scheduler_of
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.gang.state.messages import (
    VOLUMES_ONLY,
    cause_of_group_error,
    cause_of_refusal,
    cause_of_refused_pods,
    cause_of_unbound_claim,
    is_about_claim,
    names_nodes,
    scheduled_pods,
    summarize_refusal,
    to_clause,
    to_line,
    waits_for_other_pods,
)
from airflow_provider_gangjobs.gang.state.reason import UNPLACED, Reason, because
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.pod_index import Counts, PodIndex
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import EventView, KueueWorkloadView, PodGroupView, PodView

POD_GROUP_ERRORS: Final = ("PodGroupError", "SchedulerError")
"""Reasons of a PodGroup that the scheduler cannot process, since Kubernetes 1.38 and before."""


class ClaimProblem(Struct, frozen=True):
    """A PersistentVolumeClaim of a gang that does not exist, or cannot be bound."""

    claim: str
    namespace: str
    message: str = ""
    """Why the claim cannot be bound; empty if it does not exist."""


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
    claim_problem: ClaimProblem | None = None
    """Which PersistentVolumeClaim of the gang cannot be used, if that is known."""
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
    if problem is not None and is_about_claim(refusal.evidence):
        cause = cause_of_unbound_claim(problem.message) if problem.message else "ClaimMissing"
        said = to_line(problem.message)
        return because(cause, claim=problem.claim, namespace=problem.namespace, evidence=said)
    if capacity is not None and capacity.never_fits:
        return because(capacity.cause, evidence=capacity.text, never_fits="yes")
    return refusal


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
    waiting = sum(count for message, count in inputs.pods.refusals.items() if waits_for_other_pods(message))
    if found is None and not waiting:
        return None
    room, wanted = found or (waiting, inputs.counts.ranks)
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
