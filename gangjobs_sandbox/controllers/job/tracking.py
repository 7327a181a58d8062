"""Counts each pod exactly once and releases it, in an order in which each step is safe to repeat (KEP-2307).

1. UIDs of pods without the finalizer move from the uncounted list (`status.uncountedTerminatedPods`) into the counters.
2. The UIDs of pods that have ended since are added to the list, at most 500. A UID in the list is not added again.
3. The status is written, with the interim condition if the result is decided.
4. The finalizers of those pods are removed.
5. Their UIDs move into the counters.
6. If nothing is uncounted and no pod is terminating, the final condition is added, and the status is written.

After a crash that follows step 3, steps 4 and 5 are repeated from the list. A crash before step 3 has changed nothing.
The successes of an Indexed Job need no UIDs, because adding an index twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.job import conditions, failure_policy
from gangjobs_sandbox.controllers.job.assessment import Assessment, is_indexed
from gangjobs_sandbox.controllers.job.indexed_job import Indexes, index_of, valid_index
from gangjobs_sandbox.controllers.job.pod_control import COMPONENT, PodControl
from gangjobs_sandbox.controllers.job.pods import is_failed
from gangjobs_sandbox.controllers.meta import Obj, find_condition, has_condition, is_deleting, phase_of, uid_of
from gangjobs_sandbox.resources import JOBS
from gangjobs_sandbox.store import objects_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.controllers.job.assessment import Assessment
    from gangjobs_sandbox.controllers.job.pods import ClassifiedPods
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.registry import Registry


UNCOUNTED_MAX = 500
"""Limits the UIDs in the status to about 20 KB, and keeps a large Job from starving small ones."""


_OMITTED_IF_EMPTY = ("active", "succeeded", "failed", "completedIndexes", "conditions")
"""The API omits these fields if they are zero. `ready`, `terminating` and `failedIndexes` are pointers and stay."""


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


class Tracking:
    """Carries out steps 1 to 6 for one Job at a time."""

    def __init__(self, registry: Registry, control: PodControl, clock: Clock) -> None:
        self._registry = registry
        self._control = control
        self._clock = clock

    def track(
        self,
        job: Obj,
        classified: ClassifiedPods,
        assessment: Assessment,
        before: Obj,
        *,
        on_recorded: Callable[[], None],
    ) -> Cooperative[None]:
        """Count the ended pods, and finish the Job if no pod is left.

        Args:
            before: the status as stored.
            on_recorded: called after the ended pods are recorded in the status.

        Raises:
            StatusError: a write was refused, or another writer changed the Job. The next sync finds the progress in the
                status and in the pods: a listed UID whose pod has no finalizer.
        """
        status = job["status"]
        tracked = classified.tracked.keys()
        move_counted(status, tracked)
        ended = collect_ended(job, classified, assessment)
        record_ended(job, assessment, ended)
        if assessment.decision is not None and conditions.interim_of(job) is None:
            status["conditions"] = [*status.get("conditions", []), assessment.decision]
        written = self._write(job, before)
        on_recorded()
        released, refusal = yield from self._control.release_all(ended.release)
        move_counted(status, tracked - released)
        finished = refusal is None and not ended.is_capped and self._finish(job, assessment)
        self._write(job, written)
        if refusal is not None:
            raise refusal
        if finished:
            self._record_end(job)

    def _finish(self, job: Obj, assessment: Assessment) -> bool:
        if assessment.decision is None or uncounted_total(job["status"]) or assessment.terminating:
            return False
        final = conditions.final_for(assessment.decision, self._clock.now())
        conditions.ensure(job["status"], final)
        if final["type"] == conditions.COMPLETE:
            job["status"]["completionTime"] = final["lastTransitionTime"]
        return True

    def _record_end(self, job: Obj) -> None:
        if has_condition(job, conditions.COMPLETE):
            self._record_too_many_pods(job)
            self._registry.record_event(job, "Normal", "Completed", "Job completed", COMPONENT)
            return
        failed = find_condition(job, conditions.FAILED)
        assert failed is not None, "a finished Job is complete or failed"
        self._registry.record_event(job, "Warning", failed["reason"], failed["message"], COMPONENT)

    def _record_too_many_pods(self, job: Obj) -> None:
        completions = job["spec"].get("completions")
        if completions is not None and job["status"].get("succeeded", 0) > completions:
            message = "Too many succeeded pods running after completion count reached"
            self._registry.record_event(job, "Warning", "TooManySucceededPods", message, COMPONENT)

    def _write(self, job: Obj, stored: Obj) -> Obj:
        """Write the status if it differs from the stored status. Returns the stored Job."""
        status = _trimmed(job["status"])
        if status != stored:
            updated = self._registry.update(JOBS, {**job, "status": status}, subresource="status")
            job["metadata"] = updated["metadata"]
        return status


def _trimmed(status: Obj) -> Obj:
    """Return the status as the API writes it: without zero counters and empty lists."""
    uncounted = {outcome: uids for outcome, uids in status["uncountedTerminatedPods"].items() if uids}
    trimmed = {name: value for name, value in status.items() if value is not None}
    for name in _OMITTED_IF_EMPTY:
        if not trimmed.get(name):
            trimmed.pop(name, None)
    copied: Obj = objects_copy({**trimmed, "uncountedTerminatedPods": uncounted})
    return copied
