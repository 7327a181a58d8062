"""The pods of a Job, told apart in one pass: what is active, what terminates, what has ended and is still held.

The pass takes turns, since a Job may have many thousands of pods; it is about the pods as they were when it began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job.pods import is_ready, is_tracked, replaces_failed_only
from gangjobs_sandbox.controllers.meta import Obj, is_deleting, phase_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangjobs_sandbox.turns import Turns


@dataclass
class Census:
    """Lists in the order of the pods' creation."""

    active: list[Obj] = field(default_factory=list)
    ready: int = 0
    """How many of the active ones are."""
    terminating: list[Obj] = field(default_factory=list)
    """Told to end, and not terminal yet."""
    tracked: dict[str, Obj] = field(default_factory=dict)
    """By uid, the pods that carry the tracking finalizer: those that have not been counted for good."""
    succeeded: list[Obj] = field(default_factory=list)
    """Tracked ones of phase Succeeded."""
    failed: list[Obj] = field(default_factory=list)
    """Tracked ones that count as failed: see `pods.is_failed`."""


def take_census(job: Mapping[str, Any], pods: Iterable[Obj]) -> Turns[Census]:
    """Look at each pod once."""
    census = Census()
    fails_when_deleted = not replaces_failed_only(job)
    for pod in pods:
        yield
        phase, deleting, tracked = phase_of(pod), is_deleting(pod), is_tracked(pod)
        if tracked:
            census.tracked[uid_of(pod)] = pod
        if phase == "Succeeded":
            if tracked:
                census.succeeded.append(pod)
            continue
        if tracked and (phase == "Failed" or (deleting and fails_when_deleted)):
            census.failed.append(pod)
        if phase == "Failed":
            continue
        if deleting:
            census.terminating.append(pod)
        else:
            census.active.append(pod)
            census.ready += is_ready(pod)
    return census
