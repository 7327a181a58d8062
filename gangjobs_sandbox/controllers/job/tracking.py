"""Writes the status of a Job and releases its pods, in an order in which each step is safe to repeat (KEP-2307).

1. UIDs of pods without the finalizer move from the uncounted list into the counters.
2. The UIDs of pods that have ended since are added to the list, at most 500.
3. The status is written, with the interim condition if the result is decided.
4. The finalizers of those pods are removed.
5. Their UIDs move into the counters.
6. If nothing is uncounted and no pod is terminating, the final condition is added, and the status is written.

After a crash that follows step 3, steps 4 and 5 are repeated from the list. A crash before step 3 has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.job import conditions, counting
from gangjobs_sandbox.controllers.job.podcontrol import COMPONENT, PodControl
from gangjobs_sandbox.controllers.meta import Obj, find_condition, has_condition
from gangjobs_sandbox.resources import JOBS
from gangjobs_sandbox.store import objects_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.controllers.job.assessment import Assessment
    from gangjobs_sandbox.controllers.job.classification import ClassifiedPods
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.registry import Registry

_OMITTED_IF_EMPTY = ("active", "succeeded", "failed", "completedIndexes", "conditions")
"""The API omits these fields if they are zero. `ready`, `terminating` and `failedIndexes` are pointers and stay."""


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
        counting.move_counted(status, tracked)
        ended = counting.collect_ended(job, classified, assessment)
        counting.record_ended(job, assessment, ended)
        if assessment.decision is not None and conditions.interim_of(job) is None:
            status["conditions"] = [*status.get("conditions", []), assessment.decision]
        written = self._write(job, before)
        on_recorded()
        released, refusal = yield from self._control.release_all(ended.release)
        counting.move_counted(status, tracked - released)
        finished = refusal is None and not ended.is_capped and self._finish(job, assessment)
        self._write(job, written)
        if refusal is not None:
            raise refusal
        if finished:
            self._record_end(job)

    def _finish(self, job: Obj, assessment: Assessment) -> bool:
        if assessment.decision is None or counting.uncounted_total(job["status"]) or assessment.terminating:
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
    trimmed = {field: value for field, value in status.items() if value is not None}
    for field in _OMITTED_IF_EMPTY:
        if not trimmed.get(field):
            trimmed.pop(field, None)
    copied: Obj = objects_copy({**trimmed, "uncountedTerminatedPods": uncounted})
    return copied
