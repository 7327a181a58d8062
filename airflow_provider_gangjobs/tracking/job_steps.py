"""Steps that a follower does on the Job of its gang: back to the queue, and the end by the main containers.

The rules are in `gang.state.queue_wait` and `gang.state.pod_index`. The informers show when a step is due. Before
a step is done, the objects are read again, and the rules judge what was read: a watch may lag. Each write applies only
to the version that was judged. So two followers of one gang do each step once, and a follower that dies is continued by
the next one. The outcomes of ranks are in the ledger before their Job is marked as ended by the main containers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import patch_unchanged, version_of
from airflow_provider_gangjobs.cluster.errors import NotFound
from airflow_provider_gangjobs.cluster.kueue import Deactivation, deactivate_workload, find_workload
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.job_annotations import MainContainersEnd, Requeues
from airflow_provider_gangjobs.gang.state.pod_index import (
    EndByMain,
    JobRules,
    decide_end,
    end_due,
    may_end_by_main,
    read_rules,
)
from airflow_provider_gangjobs.gang.state.queue_wait import (
    RequeueStep,
    begin_requeue,
    next_assembly_baseline,
    next_step,
    pause_ends_at,
)
from airflow_provider_gangjobs.jobs.requests import list_pods
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_ASSEMBLY_BASELINE, ANNOTATION_REQUEUES
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.jobs.requests import JobRequests
    from airflow_provider_gangjobs.kube.views import KueueWorkloadView
    from airflow_provider_gangjobs.tracking.harvest.final_harvest import HarvestTask


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

    def __init__(self, jobs: JobRequests) -> None:
        self._jobs = jobs
        self.refusal = ""
        """Why the gang cannot be returned; empty if it can."""

    async def begin(self, job: StoredGang) -> bool:
        """Mark the gang, whose `assemble_timeout` has passed. Return false if the gang has to be halted.

        :param job: The Job as it was just read.
        """
        if self.refusal:
            return False
        mark = begin_requeue(job)
        if mark is not None:
            await self._mark(job, mark)
        return mark is not None or job.is_being_requeued

    def summary(self, job: StoredGang) -> str:
        """Return what to say about the returns when the gang is halted; empty if there is nothing to say."""
        if self.refusal:
            return f"The gang was not returned to its queue: {self.refusal}"
        done = job.requeues
        return f"Kueue let the gang run {done.count + 1} times" if done is not None and done.count else ""

    async def advance(self, job: StoredGang | None, workload: KueueWorkloadView | None, now: datetime) -> float | None:
        """Do the step that is due, and note when the earlier runs of the gang do not count any more.

        :param job: The Job as the informer shows it.
        :param workload: Its Workload as the informer shows it.
        :return: In how many seconds to look again; `None` if the gang is not being returned.
        """
        if job is None:
            return None
        baseline = next_assembly_baseline(job, workload)
        if baseline is not None:
            await self._jobs.patch_unchanged(job, _annotate(ANNOTATION_ASSEMBLY_BASELINE, str(baseline)))
        step = next_step(job, workload)
        if step is RequeueStep.NOTHING or self.refusal:
            return None
        if step is RequeueStep.WAIT:
            return WAIT_S
        pause_end = pause_ends_at(job, workload) if step is RequeueStep.ACTIVATE else None
        if pause_end is not None and pause_end > now:
            return (pause_end - now).total_seconds()
        await self._do_if_due(step)
        return LOOK_AGAIN_S

    async def _do_if_due(self, step: RequeueStep) -> None:
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
            version = version_of(found.view.metadata)
            await self._jobs.retry(lambda: patch_unchanged(self._jobs.client, found.resource, version, change))

    async def _mark(self, job: StoredGang, mark: Requeues) -> None:
        """Write the annotation, unless the Job has changed. Then the next look judges the new version."""
        await self._jobs.patch_unchanged(job, _annotate(ANNOTATION_REQUEUES, str(mark)))


def _annotate(name: str, value: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {name: value}}}


AGAIN_S: Final = 5.0
"""The pause after a step that could not be done: the server has another state than the watch, or nothing was stored."""


class Sidecars:
    """The end of one gang by its main containers. Only the follower calls it."""

    def __init__(self, client: Client, jobs: JobRequests, harvest: HarvestTask, now: Callable[[], datetime]) -> None:
        self._client = client
        self._jobs = jobs
        self._harvest = harvest
        self._now = now
        self._rules: JobRules | None = None

    async def advance(self, job: StoredGang | None, pods: PodIndex) -> float | None:
        """Do the next step, if one is due. Safe to repeat, and to do by several followers at once.

        Returns:
            After how many seconds the gang must be looked at again; `None` if injected containers do not matter.
        """
        if job is None:
            return None
        if job.is_ended_by_main:
            await self._jobs.finish_ended_by_main(job)
        if not pods.lingering or not may_end_by_main(job):
            return None
        self._rules = self._rules or await self._read_rules(job)
        due = end_due(job, pods, self._rules) if self._rules is not None else None
        if due is None or self._rules is None:
            return None
        left_s = (due - self._now()).total_seconds()
        return left_s if left_s > 0 else await self._end(self._rules)

    async def _read_rules(self, job: StoredGang) -> JobRules | None:
        namespace, stored = self._jobs.ref.namespace, []
        for one in job.jobs_with_pods or (job.view,):
            try:
                stored.append(await self._jobs.retry(partial(self._client.get, JOBS, one.metadata.name, namespace)))
            except NotFound:
                return None
        return read_rules(stored)

    async def _end(self, rules: JobRules) -> float:
        """Judge by what the server says now, record, and then mark the Jobs in the version that was judged."""
        client, ref = self._client, self._jobs.ref
        job = await self._jobs.read()
        if job is None or job.ref != ref or not may_end_by_main(job):
            return LOOK_AGAIN_S
        pods = await self._jobs.retry(lambda: list_pods(client, ref))
        found = decide_end(job, pods, rules)
        if found is None or found.due > self._now() or not await self._is_recorded(found):
            return AGAIN_S
        for one in found.jobs:
            if not await self._jobs.end_by_main(one, found.end):
                break
        return LOOK_AGAIN_S

    async def _is_recorded(self, found: EndByMain) -> bool:
        self._harvest.harvester.enqueue_decided(found.pods)
        if await self._harvest.drain() is not None:
            return False
        if found.end is MainContainersEnd.FAILED:
            return True
        outcomes = await self._jobs.retry(lambda: read_ledger(self._client, self._jobs.ref))
        succeeded = {one.uid for one in outcomes if one.outcome is OutcomeKind.SUCCEEDED}
        return succeeded.issuperset(pod.metadata.uid for pod in found.pods)
