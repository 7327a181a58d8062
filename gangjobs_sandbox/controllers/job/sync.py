"""One sync of one Job: read, decide, act, count. It follows `syncJob` of Kubernetes 1.36.

A sync works on the Job and the pods as they were at its beginning, and other writers may change them in the meantime.
As in Kubernetes, each write names the version that it is for: pods are written by uid, and the status by the
resourceVersion of the Job. A conflict ends the sync, and the next sync sees what this one did. The state at the
beginning of a sync is never stale, so, unlike Kubernetes, the controller keeps no expectations of creations, deletions
or removed finalizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gangjobs_sandbox.clock import Clock, timestamp
from gangjobs_sandbox.controllers.job import conditions, indexed_job
from gangjobs_sandbox.controllers.job.assessment import Assessment, assess, deadline_of, is_suspended
from gangjobs_sandbox.controllers.job.backoff import BackoffRecord
from gangjobs_sandbox.controllers.job.plan import plan, render_pod
from gangjobs_sandbox.controllers.job.pod_control import COMPONENT, PodControl, claim, is_namespace_terminating
from gangjobs_sandbox.controllers.job.pods import classify
from gangjobs_sandbox.controllers.job.tracking import Tracking
from gangjobs_sandbox.controllers.meta import Obj, is_deleting, name_of, namespace_of, uid_of
from gangjobs_sandbox.store import objects_copy

if TYPE_CHECKING:
    from gangjobs_sandbox.controllers.job.pod_control import PodIndex
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.errors import StatusError
    from gangjobs_sandbox.registry import Registry


class GangObjects(Protocol):
    """Provides the objects that make a Job's pods a gang (KEP-5547)."""

    def ensure(self, job: Obj, *, has_pods: bool) -> str | None:
        """Find or create Workload and PodGroup. Returns the PodGroup's name or None. Raises StatusError."""


class JobSync:
    """Syncs Jobs. The only state that it keeps between syncs is the back-off of the Jobs."""

    def __init__(self, registry: Registry, clock: Clock, pods: PodIndex, gangs: GangObjects | None) -> None:
        self._registry = registry
        self._clock = clock
        self._pods = pods
        self._gangs = gangs
        self._control = PodControl(registry)
        self._tracking = Tracking(registry, self._control, clock)
        self._backoffs: dict[tuple[str, str], BackoffRecord] = {}

    def forget(self, namespace: str, name: str) -> None:
        """Delete the back-off of a Job that has finished or is gone."""
        self._backoffs.pop((namespace, name), None)

    def release(self, pod: Obj) -> None:
        """Remove the tracking finalizer of a pod that no Job counts any more. Raises StatusError."""
        self._control.release(pod)

    def sync(self, stored: Obj) -> Cooperative[float | None]:
        """Sync the Job. Returns the seconds until the next sync is needed without an event, or None.

        Raises:
            StatusError: a write was refused. Earlier writes of this sync are recorded or are found again, and a
                repetition is safe.
        """
        job = objects_copy(stored)
        status = job.setdefault("status", {})
        status.setdefault("uncountedTerminatedPods", {})
        yield from claim(job, self._pods, self._control)
        pods = self._pods.controlled_by(uid_of(job))
        # The objects exist before startTime is set, because they are created only for a Job that has never started.
        group = None if self._gangs is None or is_deleting(job) else self._gangs.ensure(job, has_pods=bool(pods))
        if not status.get("startTime") and not is_suspended(job):
            status["startTime"] = timestamp(self._clock.now())
        key = (namespace_of(job), name_of(job))
        classified = yield from classify(job, pods)
        assessment = assess(job, classified, self._backoffs.get(key, BackoffRecord()), self._clock.now())
        yield
        retry_s = None
        if assessment.decision is not None:
            refusal = yield from self._end_pods(job, assessment)
        else:
            refusal, retry_s = yield from self._continue_job(job, assessment, group)
        status.update(active=assessment.active, ready=assessment.ready, terminating=assessment.terminating)
        # `classified` holds the pods as this sync found them. The next sync counts the pods that this sync creates or
        # deletes.
        yield from self._tracking.track(
            job,
            classified,
            assessment,
            stored.get("status") or {},
            on_recorded=lambda: self._backoffs.__setitem__(key, assessment.backoff),
        )
        if refusal is not None and not is_namespace_terminating(refusal):
            raise refusal
        return _earliest(retry_s, self._deadline_in_s(job, assessment))

    def _end_pods(self, job: Obj, assessment: Assessment) -> Cooperative[StatusError | None]:
        """Delete the active pods of a Job whose result is decided. Their finalizers stay until the pods are counted."""
        deleted, refusal = yield from self._control.delete(job, assessment.active_pods, uncounted=False)
        if len(deleted) < len(assessment.active_pods):
            assessment.decision = None
        assessment.count_deleted(deleted)
        return refusal

    def _continue_job(
        self, job: Obj, assessment: Assessment, group: str | None
    ) -> Cooperative[tuple[StatusError | None, float | None]]:
        refusal, retry_s = None, None
        if not is_deleting(job):
            refusal, retry_s = yield from self._manage(job, assessment, group)
        completions = job["spec"].get("completions")
        reached = assessment.succeeded > 0 if completions is None else assessment.succeeded >= completions
        if reached and assessment.active == 0:
            assessment.decision = conditions.completions_reached(self._clock.now())
        elif not is_deleting(job):
            self._record_suspension(job)
        return refusal, retry_s

    def _manage(
        self, job: Obj, assessment: Assessment, group: str | None
    ) -> Cooperative[tuple[StatusError | None, float | None]]:
        """Create or delete pods to reach the wanted number. Returns the first refusal and the seconds until a retry."""
        wanted = plan(job, assessment, self._clock.now())
        if wanted.delete:
            deleted, refusal = yield from self._control.delete(job, wanted.delete, uncounted=True)
            assessment.count_deleted(deleted)
            return refusal, wanted.retry_after_s
        pods = (self._render(job, assessment, index, group) for index in wanted.create)
        created, refusal = yield from self._control.create(job, pods)
        assessment.active += created
        return refusal, wanted.retry_after_s

    def _render(self, job: Obj, assessment: Assessment, index: int | None, group: str | None) -> Obj:
        annotations: dict[str, str] = {}
        if index is not None and assessment.indexes is not None and assessment.indexes.replaceable is not None:
            annotations = indexed_job.failure_annotations(job, assessment.indexes.replaceable.get(index))
        pod = render_pod(job, index=index, annotations=annotations)
        if group is not None:
            pod["spec"]["schedulingGroup"] = {"podGroupName": group}
        return pod

    def _record_suspension(self, job: Obj) -> None:
        now = self._clock.now()
        if is_suspended(job):
            job["status"].pop("startTime", None)
            wanted = conditions.new(conditions.SUSPENDED, "True", "JobSuspended", "Job suspended", now)
        else:
            wanted = conditions.new(conditions.SUSPENDED, "False", "JobResumed", "Job resumed", now)
        if not conditions.ensure(job["status"], wanted):
            return
        if not is_suspended(job):
            # activeDeadlineSeconds limits the time for which a Job is active without interruption.
            job["status"]["startTime"] = timestamp(now)
        reason = "Suspended" if is_suspended(job) else "Resumed"
        self._registry.record_event(job, "Normal", reason, wanted["message"], COMPONENT)

    def _deadline_in_s(self, job: Obj, assessment: Assessment) -> float | None:
        deadline = deadline_of(job)
        if deadline is None or assessment.decision is not None:
            return None
        return (deadline - self._clock.now()).total_seconds()


def _earliest(*delays_s: float | None) -> float | None:
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)
