"""Counts each pod exactly once, even if the controller crashes after any step (KEP-2307). Pure.

The controller first writes the UID of a finished pod to `status.uncountedTerminatedPods`, then removes the pod's
finalizer, then moves the UID into a counter. A UID in the list is not added again. A UID whose pod has no finalizer is
moved into the counter. The successes of an Indexed Job need no UIDs, because adding an index twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.job import conditions, failure_policy
from gangjobs_sandbox.controllers.job.assessment import Assessment, is_indexed
from gangjobs_sandbox.controllers.job.indexes import Indexes, index_of, valid_index
from gangjobs_sandbox.controllers.job.pods import is_failed
from gangjobs_sandbox.controllers.meta import Obj, is_deleting, phase_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from gangjobs_sandbox.controllers.job.classification import ClassifiedPods

UNCOUNTED_MAX = 500
"""Limits the UIDs in the status to about 20 KB, and keeps a large Job from starving small ones."""


@dataclass
class EndedPods:
    """The result of one pass over the pods."""

    release: list[Obj] = field(default_factory=list)
    """The pods whose finalizers may be removed after the status is written."""
    succeeded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    is_capped: bool = False
    """Whether the limit was reached, so that another sync is necessary."""


def move_counted(status: Obj, uids_with_finalizer: Collection[str]) -> bool:
    """Move the UIDs of pods without the finalizer into the counters. Returns whether the status changed."""
    uncounted = status["uncountedTerminatedPods"]
    moved = False
    for outcome in ("succeeded", "failed"):
        listed: list[str] = uncounted.get(outcome, [])
        left = [uid for uid in listed if uid in uids_with_finalizer]
        if len(left) != len(listed):
            moved = True
            status[outcome] = status.get(outcome, 0) + len(listed) - len(left)
            uncounted[outcome] = left
    return moved


def collect_ended(job: Obj, classified: ClassifiedPods, assessment: Assessment) -> EndedPods:
    """Find the pods to count and release, up to the limit, in order of index."""
    ended = EndedPods()
    uncounted = job["status"]["uncountedTerminatedPods"]
    known_succeeded, known_failed = set(uncounted.get("succeeded", ())), set(uncounted.get("failed", ()))
    for pod in _releasable(job, classified, assessment):
        ended.release.append(pod)
        if phase_of(pod) == "Succeeded" and uid_of(pod) not in known_failed:
            _record_success(job, pod, assessment, ended, known_succeeded)
        elif _is_failure(job, pod, assessment) and uid_of(pod) not in known_failed:
            ended.failed.append(uid_of(pod))
        recorded = len(ended.indexes) + len(ended.succeeded) + len(ended.failed)
        if recorded + len(known_succeeded) + len(known_failed) >= UNCOUNTED_MAX:
            ended.is_capped = True
            break
    return ended


def record_ended(job: Obj, assessment: Assessment, ended: EndedPods) -> bool:
    """Record the ended pods in the status, before any finalizer is removed. Returns whether the status changed."""
    status = job["status"]
    uncounted = status["uncountedTerminatedPods"]
    for outcome, uids in (("succeeded", ended.succeeded), ("failed", ended.failed)):
        if uids:
            uncounted[outcome] = [*uncounted.get(outcome, []), *uids]
    changed = bool(ended.succeeded or ended.failed or ended.indexes)
    if assessment.indexes is None:
        return changed
    succeeded = assessment.indexes.succeeded | Indexes.of(ended.indexes)
    failed = None if assessment.indexes.failed is None else str(assessment.indexes.failed)
    new = {"completedIndexes": str(succeeded), "succeeded": len(succeeded), "failedIndexes": failed}
    changed = changed or new["completedIndexes"] != status.get("completedIndexes", "")
    changed = changed or failed != status.get("failedIndexes")
    status.update(new)
    return changed


def uncounted_total(status: Obj) -> int:
    """Return the number of UIDs in `uncountedTerminatedPods`."""
    uncounted = status.get("uncountedTerminatedPods") or {}
    return len(uncounted.get("succeeded") or ()) + len(uncounted.get("failed") or ())


def _releasable(job: Obj, classified: ClassifiedPods, assessment: Assessment) -> list[Obj]:
    """Return the pods that can be released, in order of index.

    These are all pods if the Job is being deleted or decided. Otherwise they are the ended pods whose failure counts
    their replacements have inherited.
    """
    if is_deleting(job) or assessment.decision is not None:
        pods = list(classified.tracked.values())
    else:
        pods = [*classified.succeeded, *(pod for pod in classified.failed if not _awaits_replacement(pod, assessment))]
    return sorted(pods, key=lambda pod: _index_rank(index_of(pod))) if is_indexed(job) else pods


def _awaits_replacement(pod: Obj, assessment: Assessment) -> bool:
    """Return whether the pod must stay until its replacement inherits its failure count."""
    indexes = assessment.indexes
    if indexes is None or not indexes.replaceable:
        return False
    newest = indexes.replaceable.get(_index_rank(index_of(pod)))
    return newest is not None and uid_of(newest) == uid_of(pod)


def _record_success(job: Obj, pod: Obj, assessment: Assessment, ended: EndedPods, known: Collection[str]) -> None:
    if assessment.indexes is not None:
        index = valid_index(pod, job["spec"]["completions"])
        if index is not None and index not in assessment.indexes.previously_succeeded:
            ended.indexes.append(index)
    elif uid_of(pod) not in known:
        ended.succeeded.append(uid_of(pod))


def _is_failure(job: Obj, pod: Obj, assessment: Assessment) -> bool:
    """Return whether the pod counts as failed: it failed, or the Job fails while the pod exists."""
    job_fails = assessment.decision is not None and not conditions.is_success(assessment.decision)
    if not (is_failed(pod, job) or job_fails):
        return False
    if is_indexed(job) and valid_index(pod, job["spec"]["completions"]) is None:
        return False
    return failure_policy.match(job["spec"].get("podFailurePolicy"), pod).is_counted


def _index_rank(index: int | None) -> int:
    return -1 if index is None else index
