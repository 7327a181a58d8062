"""The Job controller: which events queue which Job, and which pods lose their finalizer because no Job counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.controllers.job import conditions
from gangjobs_sandbox.controllers.job.pod_control import PodIndex
from gangjobs_sandbox.controllers.job.pods import is_tracked
from gangjobs_sandbox.controllers.job.sync import GangObjects, JobSync
from gangjobs_sandbox.controllers.meta import (
    Obj,
    controller_of,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    owners_of,
    uid_of,
)
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.resources import JOBS, PODGROUPS, PODS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.registry import Event, Registry

BATCH_PERIOD_S = 1.0
"""The time in seconds for which pod events are collected before a sync."""

BUILT_IN_MANAGER = "kubernetes.io/job-controller"

_JOB, _ORPHAN = "job", "orphan pod"


class JobController:
    """Creates, counts and ends the pods of Jobs. Keys are ("job" or "orphan pod", namespace, name).

    Args:
        gangs: enables the integration of KEP-5547.
    """

    name = "job"

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        *,
        gangs: GangObjects | None = None,
    ) -> None:
        self._registry = registry
        self._watches_groups = gangs is not None
        self._jobs: dict[tuple[str, str], Obj] = {}
        self._pods = PodIndex(registry.list(PODS))
        self._sync = JobSync(registry, clock, self._pods, gangs)
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for job in registry.list(JOBS):
            self._job_changed(job, None)
        for pod in registry.list(PODS):
            self._pod_changed(pod, None)

    def observe(self, event: Event) -> None:
        is_gone = event.type == "DELETED"
        if event.resource is JOBS:
            if is_gone:
                self._job_gone(event.obj)
            else:
                self._job_changed(event.obj, event.old)
        elif event.resource is PODS:
            if is_gone:
                self._pods.drop(event.obj)
                self._enqueue_owner(event.obj)
            else:
                self._pods.put(event.obj)
                self._pod_changed(event.obj, event.old)
        elif self._watches_groups and event.resource in (WORKLOADS, PODGROUPS):
            self._group_changed(event.obj)

    def sync(self, key: Hashable) -> Cooperative[None]:
        """Handle one key. Raises StatusError."""
        assert isinstance(key, tuple)
        kind, namespace, name = key
        if kind == _ORPHAN:
            self._release_orphan(namespace, name)
            return
        job = self._jobs.get((namespace, name))
        if job is None or conditions.is_finished(job):
            self._sync.forget(namespace, name)
        elif _is_managed_here(job):
            retry_s = yield from self._sync.sync(job)
            if retry_s is not None:
                self.queue.add(key, after_s=max(retry_s, BATCH_PERIOD_S))

    def _release_orphan(self, namespace: str, name: str) -> None:
        """Release a pod whose Job is gone or finished. The pod is counted already, or will never be."""
        pod = self._registry.find(PODS, namespace, name)
        if pod is None:
            return
        owner = controller_of(pod)
        if owner is not None and (owner["kind"], owner["apiVersion"]) != ("Job", "batch/v1"):
            return
        job = self._job_of(pod)
        if job is None or (_is_managed_here(job) and conditions.is_finished(job)):
            self._sync.release(pod)

    def _job_changed(self, job: Obj, old: Obj | None) -> None:
        self._jobs[namespace_of(job), name_of(job)] = job
        same_spec = old is not None and old["metadata"].get("generation") == job["metadata"].get("generation")
        self._enqueue(job, BATCH_PERIOD_S if same_spec else 0.0)
        if conditions.is_finished(job):
            self._release_pods(job)

    def _job_gone(self, job: Obj) -> None:
        self._jobs.pop((namespace_of(job), name_of(job)), None)
        self._enqueue(job, 0.0)
        self._release_pods(job)

    def _release_pods(self, job: Obj) -> None:
        for pod in self._pods.controlled_by(uid_of(job)):
            self._enqueue_orphan(pod)

    def _pod_changed(self, pod: Obj, old: Obj | None) -> None:
        was_controlled_by = controller_of(old) if old is not None else None
        if old is not None and was_controlled_by != controller_of(pod):
            self._enqueue_owner(old)
        if controller_of(pod) is not None:
            job = self._enqueue_owner(pod)
            # A pod of a finished Job that changes late is released with its deletion, or with the next change of the
            # Job.
            if is_deleting(pod) and (job is None or conditions.is_finished(job)):
                self._enqueue_orphan(pod)
            return
        self._enqueue_orphan(pod)
        if not is_deleting(pod) and (old is None or was_controlled_by or labels_of(old) != labels_of(pod)):
            self._enqueue_adopters(pod)

    def _enqueue_adopters(self, pod: Obj) -> None:
        for (namespace, _), job in self._jobs.items():
            if namespace == namespace_of(pod):
                selected = selectors.from_object(job["spec"].get("selector"))
                if selected.matches(labels_of(pod)):
                    self._enqueue(job, BATCH_PERIOD_S)

    def _group_changed(self, group: Obj) -> None:
        for owner in owners_of(group):
            if owner["kind"] == "Job":
                self.queue.add((_JOB, namespace_of(group), owner["name"]))

    def _enqueue_owner(self, pod: Obj) -> Obj | None:
        job = self._job_of(pod)
        if job is not None:
            self._enqueue(job, BATCH_PERIOD_S)
        return job

    def _enqueue(self, job: Obj, after_s: float) -> None:
        self.queue.add((_JOB, namespace_of(job), name_of(job)), after_s=after_s)

    def _enqueue_orphan(self, pod: Obj) -> None:
        if is_tracked(pod):
            self.queue.add((_ORPHAN, namespace_of(pod), name_of(pod)))

    def _job_of(self, pod: Obj) -> Obj | None:
        owner = controller_of(pod)
        if owner is None or owner["kind"] != "Job":
            return None
        job = self._jobs.get((namespace_of(pod), owner["name"]))
        return job if job is not None and uid_of(job) == owner["uid"] else None


def _is_managed_here(job: Obj) -> bool:
    """Return whether this controller manages the Job, and not one named in `spec.managedBy` (KEP-4368)."""
    return job["spec"].get("managedBy") in (None, BUILT_IN_MANAGER)
