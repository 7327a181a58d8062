"""Returns a gang to its queue, step by step. The rules are in `gang.state.requeue`.

The informers show when a step is due. Before a step is done, the Job and the Workload are read again, and the rules
judge what was read: a watch may lag. Each write applies only to the version that was judged. So two followers of one
gang do each step once, and a follower that dies is continued by the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.kueue import Deactivation, deactivate_workload, find_workload, patch_workload
from airflow_provider_gangjobs.gang.labels import ANNOTATION_ASSEMBLY_BASELINE, ANNOTATION_REQUEUES
from airflow_provider_gangjobs.gang.state.job import Requeues
from airflow_provider_gangjobs.gang.state.requeue import (
    RequeueStep,
    begin_requeue,
    next_assembly_baseline,
    next_step,
    pause_ends_at,
)

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.jobs.requests import JobRequests
    from airflow_provider_gangjobs.kube.views import KueueWorkloadView

LOOK_AGAIN_S: Final = 1.0
WAIT_S: Final = 30.0
"""How long to wait for Kueue and for the pods before the next look. Every change of the Job or of its Workload ends the
wait."""

_REFUSALS: Final = {
    Deactivation.FORBIDDEN: "the permission to change Kueue's Workloads is missing",
    Deactivation.NO_WORKLOAD: "the Job has no Workload of Kueue",
}


class Requeue:
    """Returns one gang to its queue."""

    __slots__ = ("_jobs", "refusal")

    def __init__(self, jobs: JobRequests) -> None:
        self._jobs = jobs
        self.refusal = ""
        """Why the gang cannot be returned; empty if it can."""

    async def begin(self, job: Job) -> bool:
        """Mark the gang, whose `assemble_timeout` has passed. Return false if the gang has to be halted.

        :param job: The Job as it was just read.
        """
        if self.refusal:
            return False
        mark = begin_requeue(job)
        if mark is not None:
            await self._mark(job, mark)
        return mark is not None or job.is_being_requeued

    def summary(self, job: Job) -> str:
        """Return what to say about the returns when the gang is halted; empty if there is nothing to say."""
        if self.refusal:
            return f"The gang was not returned to its queue: {self.refusal}"
        done = job.requeues
        return f"Kueue let the gang run {done.count + 1} times" if done is not None and done.count else ""

    async def advance(self, job: Job | None, workload: KueueWorkloadView | None, now: datetime) -> float | None:
        """Do the step that is due, and note when the earlier runs of the gang do not count any more.

        :param job: The Job as the informer shows it.
        :param workload: Its Workload as the informer shows it.
        :return: In how many seconds to look again; `None` if the gang is not being returned.
        """
        baseline = next_assembly_baseline(job, workload) if job is not None else None
        if job is not None and baseline is not None:
            await self._jobs.patch_unchanged(job, _annotate(ANNOTATION_ASSEMBLY_BASELINE, str(baseline)))
        step = next_step(job, workload) if job is not None else RequeueStep.NOTHING
        if job is None or step is RequeueStep.NOTHING or self.refusal:
            return None
        if step is RequeueStep.WAIT:
            return WAIT_S
        pause_end = pause_ends_at(job, workload) if step is RequeueStep.ACTIVATE else None
        if pause_end is not None and pause_end > now:
            return (pause_end - now).total_seconds()
        await self._do_if_due(step)
        return LOOK_AGAIN_S

    async def _do_if_due(self, step: RequeueStep) -> None:
        """Do the step if it is still due by what the server has now."""
        job = await self._jobs.read()
        if job is None:
            return
        key = job.ref.namespace, job.queued_uid
        found = await self._jobs.retry(lambda: find_workload(self._jobs.client, *key))
        if next_step(job, found.view if found else None) is not step:
            return
        if step is RequeueStep.DEACTIVATE:
            deactivation = await self._jobs.retry(lambda: deactivate_workload(self._jobs.client, *key))
            self.refusal = _REFUSALS.get(deactivation, "")
        elif step is RequeueStep.FINISH and job.requeues is not None:
            await self._mark(job, Requeues(job.requeues.count))
        elif step is RequeueStep.ACTIVATE and found is not None:
            change: dict[str, Any] = {"spec": {"active": True}}
            await self._jobs.retry(lambda: patch_workload(self._jobs.client, found, change))

    async def _mark(self, job: Job, mark: Requeues) -> None:
        """Write the annotation, unless the Job has changed. Then the next look judges the new version."""
        await self._jobs.patch_unchanged(job, _annotate(ANNOTATION_REQUEUES, str(mark)))


def _annotate(name: str, value: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {name: value}}}
