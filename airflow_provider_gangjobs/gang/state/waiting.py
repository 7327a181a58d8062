"""Why a gang does not run yet, with the evidence from the cluster. The most severe cause comes first.

Pods that the scheduler keeps out of its queue until the whole gang exists have no condition and no event (PreEnqueue),
so the absence of both is evidence too.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.capacity import NEVER_FITS, Capacity
from airflow_provider_gangjobs.gang.schedulers.external import names_cause, says_refused, separate_scheduler_of
from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.pod_index import Counts, PodIndex
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import EventView, KueueWorkloadView, PodGroupView, PodView

WAIT_TEXT_CHARACTERS_MAX: Final = 256
"""Limit of a message from the cluster, because schedulers list the reasons of every node."""
NO_CAUSE_NAMED: Final = "The scheduler cannot place the gang, and no pod names the cause"
POD_GROUP_ERRORS: Final = ("PodGroupError", "SchedulerError")
"""Reasons of a PodGroup that the scheduler cannot process, since Kubernetes 1.38 and before."""


class WaitCause(StrEnum):
    """Cause for which a phase waits. The values are part of events and are never renamed."""

    CONTROLLER = "controller"
    SUBMISSION = "submission"
    STOPPED = "stopped"
    QUEUE = "queue"
    QUEUE_REFUSED = "queue-refused"
    WORKLOAD_MISSING = "workload-missing"
    IMAGE = "image"
    CONFIG = "config"
    NODE = "node"
    """The node of a pod cannot mount its volumes or create its sandbox, as the Events of the pod say."""
    PODS_MISSING = "pods-missing"
    UNSCHEDULABLE = "unschedulable"
    VOLUME = "volume"
    """A PersistentVolumeClaim of the gang does not exist or cannot be bound, and it is known why."""
    GATED = "gated"
    SCHEDULER = "scheduler"
    STARTING = "starting"
    RANKS = "ranks"
    SIDECAR = "sidecar"
    ENDING = "ending"
    HARVEST = "harvest"
    NOTHING = "nothing"


NODE_CAUSES: Final = frozenset({WaitCause.UNSCHEDULABLE, WaitCause.VOLUME})
"""The scheduler cannot place the gang."""


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
    earlier_refusal: str = ""
    """The cause that the pods named when the gang was observed before, if the scheduler has overwritten it since."""
    claim_problem: str = ""
    """Which PersistentVolumeClaim of the gang cannot be used, and why; empty if that is unknown."""
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


class Wait(Struct, frozen=True):
    """A cause, and a sentence with its evidence; the sentence may be empty.

    `queue_position` is the position in the ClusterQueue, if the sentence contains it.
    """

    cause: WaitCause
    text: str = ""
    queue_position: int | None = None
    since: datetime | None = None
    """Time at which the cause began, if it is later than the phase."""
    capacity: Capacity | None = None
    """How much is free of what the gang waits for. Its numbers move, so they are no part of the sentence."""
    stopped: Stopped | None = None
    """The mark of a gang that was stopped."""

    @property
    def reason(self) -> str:
        return self.text.removesuffix(format_position(self.queue_position))

    @property
    def never_fits(self) -> bool:
        """The present nodes could not hold the gang even without any other pod."""
        return self.text.startswith(NEVER_FITS)

    @property
    def names_no_cause(self) -> bool:
        return self.text == NO_CAUSE_NAMED


def format_position(position: int | None) -> str:
    """Return the end of a sentence about a gang in its queue; empty if the position is not known."""
    return "" if position is None else f". Position {position} in the ClusterQueue"


def explain_assembly(inputs: WaitInputs) -> Wait:
    """Return why not all ranks have started, by the first rule that finds a cause."""
    for cause, rule in _RULES:
        text = rule(inputs)
        if text is not None:
            return _explain_refusal(text, inputs) if cause is WaitCause.UNSCHEDULABLE else Wait(cause, text)
    return Wait(WaitCause.STARTING, _describe_start(inputs.counts))


# Kubernetes 1.37 names the plugin instead of a claim that does not exist.
_ABOUT_CLAIM: Final = re.compile(r"persistentvolumeclaim|DynamicResources", re.IGNORECASE)


def _explain_refusal(refusal: str, inputs: WaitInputs) -> Wait:
    """Return why the scheduler cannot place the gang: by a claim or, with how much is free, in its own words."""
    if inputs.evidence.claim_problem and _ABOUT_CLAIM.search(refusal):
        return Wait(WaitCause.VOLUME, to_line(inputs.evidence.claim_problem))
    capacity = inputs.evidence.capacity
    if capacity is not None and capacity.never_fits:
        return Wait(WaitCause.UNSCHEDULABLE, capacity.text)
    known = capacity if capacity is not None and capacity.text else _find_partial_room(inputs)
    return Wait(WaitCause.UNSCHEDULABLE, refusal, capacity=known)


# The scheduler of Kubernetes 1.37 says how many pods have found a node, and the one of 1.36 says it of each such pod.
_SCHEDULED: Final = re.compile(r"minCount \((?P<wanted>\d+)\) cannot be satisfied: (?P<scheduled>\d+) scheduled")
_WAITS_FOR_OTHERS: Final = "waiting for minCount pods from a gang to be scheduled"


def _find_partial_room(inputs: WaitInputs) -> Capacity | None:
    """Return how many pods the scheduler itself has found nodes for; `None` if it does not say."""
    found = next(filter(None, map(_SCHEDULED.search, (*inputs.pods.refusals, _group_reason(inputs)))), None)
    scheduled = sum(count for text, count in inputs.pods.refusals.items() if _WAITS_FOR_OTHERS in text)
    wanted = int(found["wanted"]) if found else inputs.counts.ranks
    room = int(found["scheduled"]) if found else scheduled
    if not found and not scheduled:
        return None
    text = f"The scheduler has found nodes for {room} of {wanted} pods"
    return Capacity(text=text, room=room, ranks=wanted)


def explain_run(pods: PodIndex) -> Wait:
    """Return what a gang waits for whose ranks have all started."""
    found = sorted(pods.lingering.values(), key=podutil.rank_order)
    if not found:
        return Wait(WaitCause.RANKS)
    ends = [end for pod in found if (end := podutil.main_end(pod)) is not None]
    others = ", ".join(podutil.keeps_running(found[0]))
    more = f". The same holds for {pluralize(len(found) - 1, 'other rank')}" if len(found) > 1 else ""
    text = (
        f"The main container of {_name_pod(found[0])} has ended with exit code {ends[0].exit_code}, and container "
        f"{others} keeps its pod running{more}. If {others} is a sidecar, let it end with the main container, or make "
        "it an init container with restartPolicy: Always"
    )
    return Wait(WaitCause.SIDECAR, text, since=min(filter(None, (end.finished_at for end in ends)), default=None))


def _find_container_error(inputs: WaitInputs, reasons: frozenset[str]) -> str | None:
    pods = inputs.pods.pods_with_errors.values()
    found = [(pod, *waits) for pod in pods if (waits := podutil.container_waits(pod, reasons))]
    if not found:
        return None
    pod, container, waiting = min(found, key=lambda item: podutil.rank_order(item[0]))
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    image = _image_of(pod, container) if waiting.reason in podutil.IMAGE_REASONS else ""
    what = f'{waiting.reason} of image "{image}"' if image else waiting.reason
    return f"{what} at {_name_pod(pod)}{more}: {to_line(waiting.message)}".rstrip(": ")


_NODE_REASONS: Final = re.compile(
    "Failed(AttachVolume|CreatePodContainer|CreatePodSandBox|MapVolume|Mount|PrepareDynamicResources)"
    "|NetworkNotReady|VolumePermissionChangeInProgress"
)
"""Reasons of the Events of a pod that its node cannot prepare. The status of such a pod does not say why."""
_NAMES_VOLUMES_ONLY: Final = "Unable to attach or mount volumes"
"""The beginning of what the kubelet repeats after two minutes, without the cause."""


def _find_node_problem(inputs: WaitInputs) -> str | None:
    pods = inputs.pods.preparing
    of_pods = (each for each in inputs.evidence.events if each.involved_object.uid in pods)
    events = [each for each in of_pods if _NODE_REASONS.fullmatch(each.reason)]
    if not events:
        return None
    last = find_last([each for each in events if not each.message.startswith(_NAMES_VOLUMES_ONLY)] or events)
    return f"{last.reason} at {_name_pod(pods[last.involved_object.uid])}: {to_line(last.message)}"


def _image_of(pod: PodView, container: str) -> str:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return next((one.image for one in containers if one.name == container), "")


_NAMED_IMAGE: Final = re.compile(rf'(?:{"|".join(sorted(podutil.IMAGE_REASONS))}) of image "([^"]*)" at ')


def parse_image(text: str) -> str:
    """Return the image in the evidence of `WaitCause.IMAGE`; empty if the evidence has no image."""
    found = _NAMED_IMAGE.search(text)
    return found[1] if found else ""


def _name_pod(pod: PodView) -> str:
    role = pod.metadata.labels.gang_role or ""
    return podutil.name_rank(podutil.rank_of(pod), role, podutil.role_rank_of(pod), pod=pod.metadata.name)


def _find_missing_pods(inputs: WaitInputs) -> str | None:
    missing = inputs.counts.ranks - inputs.counts.created
    if missing <= 0:
        return None
    refused = [event for event in inputs.evidence.events if event.reason == "FailedCreate"]
    if not refused:
        return f"{pluralize(missing, 'pod')} not created yet"
    return f"{pluralize(missing, 'pod')} could not be created: {to_line(find_last(refused).message)}"


def _find_refusal(inputs: WaitInputs) -> str | None:
    group = inputs.podgroup.status.conditions if inputs.podgroup else ()
    failed = next((item for item in group if item.status == "False" and item.reason in POD_GROUP_ERRORS), None)
    if failed is not None:
        return to_line(f"{failed.reason}: {failed.message}")
    # The message of most pods only says that other pods of the gang are missing: since 1.36, and with other schedulers.
    # The messages about nodes contain the cause.
    messages = {message: count for message, count in inputs.pods.refusals.items() if names_cause(message)}
    causes = {message: count for message, count in messages.items() if _NODES.search(message)} or messages
    if causes:
        return summarize_scheduler_message(min(causes, key=lambda message: (-causes[message], message)))
    reason = _group_reason(inputs)
    if reason:
        return summarize_scheduler_message(reason)
    if any(says_refused(message) for message in inputs.pods.refusals):
        return inputs.evidence.earlier_refusal or NO_CAUSE_NAMED
    return None


def find_named_refusal(events: Iterable[EventView]) -> str:
    """Return the cause that the latest of a scheduler's Events names about pods; empty if none names a cause."""
    named = [event for event in events if names_cause(event.message) and _NODES.search(event.message)]
    return summarize_scheduler_message(find_last(named).message) if named else ""


def find_last(events: Iterable[EventView]) -> EventView:
    """Return the event that was seen last. There must be one."""
    return max(events, key=lambda event: event.seen.timestamp() if event.seen else 0.0)


def _group_reason(inputs: WaitInputs) -> str:
    if inputs.podgroup is None:
        return ""
    scheduler = separate_scheduler_of(inputs.job.decision if inputs.job else None)
    if scheduler is not None:
        return scheduler.group_reason(inputs.podgroup)
    refused = (item for item in inputs.podgroup.status.conditions if item.status == "False" and item.message)
    return next((item.message for item in refused), "")


def _find_gates(inputs: WaitInputs) -> str | None:
    gates = inputs.pods.gates
    if not gates:
        return None
    count = gates.total()
    return f"{pluralize(count, 'pod')} {'has' if count == 1 else 'have'} scheduling gates: {'; '.join(sorted(gates))}"


def _find_scheduler_silence(inputs: WaitInputs) -> str | None:
    if inputs.counts.placed >= inputs.counts.ranks:
        return None
    if inputs.pods.refusals:
        return NO_CAUSE_NAMED
    scheduler = separate_scheduler_of(inputs.job.decision if inputs.job else None)
    if scheduler is not None and (text := scheduler.explain_silence(inputs.podgroup)):
        return text
    pods = _placed_at_once(inputs.podgroup) if inputs.podgroup else None
    return f"The scheduler waits until {pods} pods can be placed at once" if pods else "Waits for the scheduler"


def placed_at_once(job: StoredGang, group: PodGroupView | None) -> int:
    """Return how many ranks of a gang are placed together: 1 without gang scheduling."""
    is_gang = (job.decision or "").startswith("gang:")  # the format of `PlacementDecision`
    return (_placed_at_once(group) if group else None) or (job.ranks if is_gang else 1)


def _placed_at_once(group: PodGroupView) -> int | None:
    gang = group.spec.scheduling_policy.gang
    return gang.min_count if gang else group.spec.min_member


_RULES: Final[tuple[tuple[WaitCause, Callable[[WaitInputs], str | None]], ...]] = (
    (WaitCause.IMAGE, partial(_find_container_error, reasons=podutil.IMAGE_REASONS)),
    (WaitCause.CONFIG, partial(_find_container_error, reasons=podutil.CONFIG_REASONS)),
    (WaitCause.NODE, _find_node_problem),
    (WaitCause.PODS_MISSING, _find_missing_pods),
    (WaitCause.UNSCHEDULABLE, _find_refusal),
    (WaitCause.GATED, _find_gates),
    (WaitCause.SCHEDULER, _find_scheduler_silence),
)


def _describe_start(counts: Counts) -> str:
    return f"{pluralize(counts.ranks - counts.started, 'rank')} starting: nodes pull images and create containers"


# The scheduler's summary: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s)."
# Volcano writes "unavailable". The text after the first sentence is about preemption.
_NODES: Final = re.compile(
    r"(?<!\d)\d+/(?P<nodes>\d+) nodes are (?:un)?available: (?P<reasons>.*?)(?:\. .*|\.)?$", re.DOTALL
)
_REASON: Final = re.compile(r"^(?P<count>\d+) (?:node\(s\) )?(?P<what>.+)$", re.DOTALL)


def summarize_scheduler_message(message: str) -> str:
    """Return a short form of a scheduler's message, for example `Insufficient nvidia.com/gpu on 3 of 3 nodes`.

    A message in an unknown format is cut at `WAIT_TEXT_CHARACTERS_MAX`.
    """
    found = _NODES.search(message)
    if found is None:
        return to_line(message)
    parts = [_REASON.match(part.strip(" .")) for part in re.split(r", (?=\d)", found["reasons"])]
    if not all(parts):
        return to_line(message)
    ordered = sorted((part for part in parts if part), key=lambda part: -int(part["count"]))
    return to_line("; ".join(f"{part['what']} on {part['count']} of {found['nodes']} nodes" for part in ordered))


def to_line(message: str) -> str:
    """Return the message on one line, cut at `WAIT_TEXT_CHARACTERS_MAX`."""
    line = to_printable_line(message)
    return cut_end(line, WAIT_TEXT_CHARACTERS_MAX)
