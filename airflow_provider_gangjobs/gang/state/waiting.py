"""What a gang that does not run yet waits for: a cause, and the evidence in the cluster's own words.

A table of rules over what is seen, the most fatal first. Pods that the scheduler holds back until
the whole gang exists have no condition and no event at all (PreEnqueue), so silence is evidence too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state import pods as podutil
from airflow_provider_gangjobs.kube.text import cut_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
    from airflow_provider_gangjobs.gang.state.progress import Counts
    from airflow_provider_gangjobs.kube.views import EventView, PodGroupView, PodView

EVIDENCE_CHARACTERS_MAX: Final = 256
"""Of a message of the cluster; schedulers list every node's reason."""


class WaitCause(StrEnum):
    """What a phase waits for. A contract: reported in events, never renamed."""

    CONTROLLER = "controller"
    SUBMISSION = "submission"
    HALTED = "halted"
    QUEUE = "queue"
    IMAGE = "image"
    CONFIG = "config"
    PODS_MISSING = "pods-missing"
    UNSCHEDULABLE = "unschedulable"
    SCHEDULER = "scheduler"
    STARTING = "starting"
    RANKS = "ranks"
    ENDING = "ending"
    HARVEST = "harvest"
    NOTHING = "nothing"


@dataclass(frozen=True)
class WaitInputs:
    """Everything the rules may look at."""

    job: Job | None
    pods: PodIndex
    podgroup: PodGroupView | None
    counts: Counts
    events: Sequence[EventView] = ()


@dataclass(frozen=True)
class Wait:
    """A cause with its evidence, a sentence or none."""

    cause: WaitCause
    text: str = ""


def explain_suspension(job: Job) -> Wait:
    """Who is to unsuspend the Job."""
    if job.is_halted:
        return Wait(WaitCause.HALTED, f"It was halted: {job.halt_note}")
    if job.queue:
        return Wait(WaitCause.QUEUE, f"Waits for admission by Kueue queue {job.queue}")
    if job.is_suspended and job.is_kept_suspended:
        return Wait(WaitCause.SUBMISSION, "The Job is suspended until its user lets it run, as keep_suspended asks for")
    if job.is_suspended:
        return Wait(WaitCause.SUBMISSION, "The Job is suspended: its submission is not complete")
    return Wait(WaitCause.CONTROLLER, "Waits for the Job controller to resume it")


def explain_assembly(seen: WaitInputs) -> Wait:
    """Why not all ranks run yet: the first rule that finds something."""
    for cause, rule in _RULES:
        text = rule(seen)
        if text is not None:
            return Wait(cause, text)
    return Wait(WaitCause.STARTING, _starting(seen.counts))


def _image(seen: WaitInputs) -> str | None:
    return _container_trouble(
        seen.pods.troubled.values(), podutil.IMAGE_REASONS, of=lambda image: f' of image "{image}"' if image else ""
    )


def _config(seen: WaitInputs) -> str | None:
    return _container_trouble(seen.pods.troubled.values(), podutil.CONFIG_REASONS, of=lambda image: "")


def _container_trouble(pods: Iterable[PodView], reasons: frozenset[str], *, of: Callable[[str], str]) -> str | None:
    found = [(pod, *waits) for pod in pods if (waits := podutil.container_waits(pod, reasons))]
    if not found:
        return None
    pod, container, waiting = min(found, key=lambda item: _rank_order(item[0]))
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    what = f"{waiting.reason}{of(_image_of(pod, container))}"
    return f"{what} at {_who(pod)}{more}: {to_line(waiting.message)}".rstrip(": ")


def _image_of(pod: PodView, container: str) -> str:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return next((one.image for one in containers if one.name == container), "")


_NAMED_IMAGE: Final = re.compile(rf'(?:{"|".join(sorted(podutil.IMAGE_REASONS))}) of image "([^"]*)" at ')


def parse_image(text: str) -> str:
    """Return the image that the evidence of `Cause.IMAGE` names; empty if it names none.

    The note on a halted Job holds the evidence as text only, and a later follower has nothing else.
    """
    found = _NAMED_IMAGE.search(text)
    return found[1] if found else ""


def _rank_order(pod: PodView) -> tuple[int, str]:
    rank = podutil.rank_of(pod)
    return -1 if rank is None else rank, pod.metadata.name


def _who(pod: PodView) -> str:
    rank = podutil.rank_of(pod)
    return f"pod {pod.metadata.name}" if rank is None else f"rank {rank}"


def _pods_missing(seen: WaitInputs) -> str | None:
    missing = seen.counts.ranks - seen.counts.created
    if missing <= 0:
        return None
    refused = [event for event in seen.events if event.reason == "FailedCreate"]
    if not refused:
        return f"{pluralize(missing, 'pod')} not created yet"
    last = max(refused, key=lambda event: event.seen.timestamp() if event.seen else 0.0)
    return f"{pluralize(missing, 'pod')} could not be created: {to_line(last.message)}"


def _unschedulable(seen: WaitInputs) -> str | None:
    refusals = seen.pods.refusals
    if refusals:
        # Since 1.36 most pods only say that the gang lacks others; the cause is told by those that no node took.
        causes = {message: count for message, count in refusals.items() if _NODES.search(message)}
        heard = causes or refusals
        return summarize_scheduler_message(min(heard, key=lambda message: (-heard[message], message)))
    if seen.podgroup is None:
        return None
    refused = (item for item in seen.podgroup.status.conditions if item.status == "False" and item.message)
    return next((summarize_scheduler_message(item.message) for item in refused), None)


def _scheduler_silent(seen: WaitInputs) -> str | None:
    if seen.counts.placed >= seen.counts.ranks:
        return None
    gang = seen.podgroup.spec.scheduling_policy.gang if seen.podgroup else None
    return (
        f"The scheduler waits until {gang.min_count} pods can be placed at once" if gang else "Waits for the scheduler"
    )


_RULES: Final[tuple[tuple[WaitCause, Callable[[WaitInputs], str | None]], ...]] = (
    (WaitCause.IMAGE, _image),
    (WaitCause.CONFIG, _config),
    (WaitCause.PODS_MISSING, _pods_missing),
    (WaitCause.UNSCHEDULABLE, _unschedulable),
    (WaitCause.SCHEDULER, _scheduler_silent),
)


def _starting(counts: Counts) -> str:
    return f"{pluralize(counts.ranks - counts.started, 'rank')} starting: images are pulled, containers created"


# The scheduler's summary: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s)."
# What follows the first sentence is about preemption.
_NODES: Final = re.compile(r"\d+/(?P<nodes>\d+) nodes are available: (?P<reasons>.*?)(?:\. .*|\.)?$", re.DOTALL)
_REASON: Final = re.compile(r"^(?P<count>\d+) (?:node\(s\) )?(?P<what>.+)$", re.DOTALL)


def summarize_scheduler_message(message: str) -> str:
    """`Insufficient nvidia.com/gpu on 3 of 3 nodes` out of a scheduler's message; one of another form is cut only."""
    found = _NODES.search(message)
    if found is None:
        return to_line(message)
    parts = [_REASON.match(part.strip(" .")) for part in re.split(r", (?=\d)", found["reasons"])]
    if not all(parts):
        return to_line(message)
    ordered = sorted((part for part in parts if part), key=lambda part: -int(part["count"]))
    return to_line("; ".join(f"{part['what']} on {part['count']} of {found['nodes']} nodes" for part in ordered))


def pluralize(count: int, what: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {what}{'s'[: count != 1]}"


def to_line(message: str) -> str:
    """The message on one line, cut at `EVIDENCE_CHARACTERS_MAX`."""
    line = " ".join(message.split())
    return cut_end(line, EVIDENCE_CHARACTERS_MAX)
