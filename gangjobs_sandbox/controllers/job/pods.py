"""Reads the pods of a Job: which are active, which terminate, and which have ended and are still tracked.

A Job may have many thousands of pods, so the pass over them is cooperative. It sees the pods as they were when it
began. The functions for one pod are pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.meta import (
    Obj,
    deleted_at,
    finalizers_of,
    find_condition,
    has_condition,
    is_deleting,
    is_terminal,
    node_of,
    parse_time,
    phase_of,
    uid_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from gangjobs_sandbox.cooperative import Cooperative


FINALIZER_TRACKING = "batch.kubernetes.io/job-tracking"

_PHASE_ORDER = {"Pending": 0, "Unknown": 1, "Running": 2}


def is_tracked(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod has the tracking finalizer: the counters do not include the pod yet."""
    return FINALIZER_TRACKING in finalizers_of(pod)


def is_ready(pod: Mapping[str, Any]) -> bool:
    return has_condition(pod, "Ready")


def replaces_failed_only(job: Mapping[str, Any]) -> bool:
    """Return whether pods are replaced and counted only when terminal (KEP-3939; a pod failure policy implies it)."""
    spec = job["spec"]
    return spec.get("podReplacementPolicy") == "Failed" or spec.get("podFailurePolicy") is not None


def is_failed(pod: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Return whether the pod failed, or is being deleted while the Job does not wait for the pod's end."""
    if phase_of(pod) == "Failed":
        return True
    return not replaces_failed_only(job) and is_deleting(pod) and phase_of(pod) != "Succeeded"


def finished_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return when the pod ended, from its containers, or else its Ready condition, deletion, or creation."""
    return (
        _containers_finished_at(pod)
        or _not_ready_since(pod)
        or deleted_at(pod)
        or parse_time(pod["metadata"].get("creationTimestamp"))
    )


def removal_order(pods: Iterable[Obj]) -> list[Obj]:
    """Return the pods in removal order: unscheduled, pending, not ready, and then youngest first."""
    return sorted(pods, key=_removal_rank)


def restarts_of(pod: Mapping[str, Any]) -> int:
    """Return the container restarts of a pod that may still run."""
    if is_terminal(pod):
        return 0
    status = pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return sum(container.get("restartCount") or 0 for container in statuses)


def _removal_rank(pod: Obj) -> tuple[bool, int, bool, float]:
    created = parse_time(pod["metadata"].get("creationTimestamp"))
    age_rank = -created.timestamp() if created else 0.0
    return node_of(pod) is not None, _PHASE_ORDER.get(phase_of(pod), 0), is_ready(pod), age_rank


def _containers_finished_at(pod: Mapping[str, Any]) -> datetime | None:
    latest: datetime | None = None
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        terminated = (status.get("state") or {}).get("terminated") or {}
        moment = parse_time(terminated.get("finishedAt"))
        if moment is None:
            return None
        latest = moment if latest is None else max(latest, moment)
    return latest


def _not_ready_since(pod: Mapping[str, Any]) -> datetime | None:
    ready = find_condition(pod, "Ready")
    if ready is None or ready.get("status") != "False":
        return None
    return parse_time(ready.get("lastTransitionTime"))


@dataclass
class ClassifiedPods:
    """The pods of one Job by state. Each list is in the order of creation."""

    active: list[Obj] = field(default_factory=list)
    ready: int = 0
    """The number of active pods that are ready."""
    terminating: list[Obj] = field(default_factory=list)
    """Pods that are being deleted and have not reached a terminal phase."""
    tracked: dict[str, Obj] = field(default_factory=dict)
    """By UID, the pods with the tracking finalizer: the counters of the status do not include them yet."""
    succeeded: list[Obj] = field(default_factory=list)
    """Tracked pods of phase Succeeded."""
    failed: list[Obj] = field(default_factory=list)
    """Tracked pods that count as failed: see `pods.is_failed`."""


def classify(job: Mapping[str, Any], pods: Iterable[Obj]) -> Cooperative[ClassifiedPods]:
    """Classify each pod of the Job."""
    classified = ClassifiedPods()
    fails_when_deleted = not replaces_failed_only(job)
    for pod in pods:
        yield
        phase, deleting, tracked = phase_of(pod), is_deleting(pod), is_tracked(pod)
        if tracked:
            classified.tracked[uid_of(pod)] = pod
        if phase == "Succeeded":
            if tracked:
                classified.succeeded.append(pod)
            continue
        if tracked and (phase == "Failed" or (deleting and fails_when_deleted)):
            classified.failed.append(pod)
        if phase == "Failed":
            continue
        if deleting:
            classified.terminating.append(pod)
        else:
            classified.active.append(pod)
            classified.ready += is_ready(pod)
    return classified
