"""Classifies the pods of a Job in one pass: which are active, which terminate, which have ended and are still tracked.

A Job may have many thousands of pods, so the pass is cooperative. It sees the pods as they were when it began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job.pods import is_ready, is_tracked, replaces_failed_only
from gangjobs_sandbox.controllers.meta import Obj, is_deleting, phase_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangjobs_sandbox.cooperative import Cooperative


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
