"""Steps that a follower does on the Job of its gang: the time of assembly, and the end by the main containers.

The rules are in `gang.state.waiting` and `gang.state.pods`. The informers show when a step is due. Before
a step is done, the objects are read again, and the rules judge what was read: a watch may lag. Each write applies only
to the version that was judged. So two followers of one gang do each step once, and a follower that dies is continued by
the next one. The outcomes of ranks are in the ledger before their Job is marked as ended by the main containers.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import patch_uid, patch_unchanged, version_of
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.ending.stop import delete_job_set, finish_stop
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.record import to_text
from airflow_provider_gangjobs.gang.state.pods import (
    EndByMain,
    JobRules,
    decide_end,
    end_due,
    may_end_by_main,
    read_rules,
)
from airflow_provider_gangjobs.gang.state.stopped import BY_FAILURE, BY_SUCCESS, STOPPED_DEADLINE_S, mark_patch
from airflow_provider_gangjobs.gang.state.stored_gang import (
    is_ended_by_main,
    is_kept_from_failing,
    must_delete_job_set,
    ttl_patch,
)
from airflow_provider_gangjobs.gang.state.waiting import next_assembly_baseline
from airflow_provider_gangjobs.jobs.requests import get_job, list_pods
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_ASSEMBLY_BASELINE
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.pods import PodIndex
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import KueueWorkloadView
    from airflow_provider_gangjobs.tracking.harvest.final_harvest import HarvestTask


log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 1.0
AGAIN_S: Final = 5.0
"""The pause after a step that could not be done: the server has another state than the watch, or nothing was stored."""


async def keep_assembly_baseline(
    requests: RetryingRequests, job: StoredGang, workload: KueueWorkloadView | None
) -> None:
    """Note when the earlier runs of the gang do not count any more, unless the Job has changed."""
    baseline = next_assembly_baseline(job, workload)
    if baseline is not None:
        note = {"metadata": {"annotations": {ANNOTATION_ASSEMBLY_BASELINE: to_text(baseline)}}}
        seen = version_of(job.view.metadata)
        await requests.retry(lambda: patch_unchanged(requests.client, JOBS, seen, note))


async def set_ttl(requests: RetryingRequests, job: StoredGang | None) -> None:
    """Have Kubernetes delete the Jobs of a gang with roles after their time to live, which begins now.

    Raises no `ClusterError`: without a time to live the Jobs stay.
    """
    patch = ttl_patch(job) if job is not None and job.jobs else None
    if job is None or patch is None:
        return
    ref = job.ref
    try:
        await patch_uid(requests.client, JOBS, ref.name, ref.namespace, ref.uid, patch)
    except ClusterError as exc:
        log.warning("gang %s: its Jobs have no time to live: %s", ref, exc)


class Sidecars:
    """The end of one gang by its main containers. Only the follower calls it."""

    def __init__(
        self, requests: RetryingRequests, ref: GangRef, harvest: HarvestTask, now: Callable[[], datetime]
    ) -> None:
        self._client = requests.client
        self._requests = requests
        self._ref = ref
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
        if is_ended_by_main(job):
            await self._go_on_with_end(job)
        if not pods.lingering or not may_end_by_main(job):
            return None
        self._rules = self._rules or await self._read_rules(job)
        due = end_due(job, pods, self._rules) if self._rules is not None else None
        if due is None or self._rules is None:
            return None
        left_s = (due - self._now()).total_seconds()
        return left_s if left_s > 0 else await self._end(self._rules)

    async def _go_on_with_end(self, job: StoredGang) -> None:
        if is_kept_from_failing(job):  # a queue may have suspended the Job in the same moment
            await finish_stop(self._client, self._ref)
        if must_delete_job_set(job):
            await self._requests.retry(partial(delete_job_set, self._client, self._ref))

    async def _read_rules(self, job: StoredGang) -> JobRules | None:
        stored = []
        for one in job.jobs_with_pods or (job.view,):
            try:
                read = partial(self._client.get, JOBS, one.metadata.name, self._ref.namespace)
                stored.append(await self._requests.retry(read))
            except NotFound:
                return None
        return read_rules(stored)

    async def _end(self, rules: JobRules) -> float:
        """Judge by what the server says now, record, and then mark the Jobs in the version that was judged."""
        client, ref = self._client, self._ref
        job = await self._requests.retry(lambda: get_job(client, ref))
        if job is None or job.ref != ref or not may_end_by_main(job):
            return LOOK_AGAIN_S
        pods = await self._requests.retry(lambda: list_pods(client, ref))
        found = decide_end(job, pods, rules)
        if found is None or found.due > self._now() or not await self._is_recorded(found):
            return AGAIN_S
        deadline = {"spec": {"activeDeadlineSeconds": STOPPED_DEADLINE_S}}
        body = mark_patch(BY_SUCCESS if found.has_succeeded else BY_FAILURE) | deadline
        for one in found.jobs:
            end = partial(patch_unchanged, client, JOBS, version_of(one.metadata), body)
            if not await self._requests.retry(end):
                break
        return LOOK_AGAIN_S

    async def _is_recorded(self, found: EndByMain) -> bool:
        self._harvest.harvester.enqueue_decided(found.pods)
        if await self._harvest.drain() is not None:
            return False
        if not found.has_succeeded:
            return True
        outcomes = await self._requests.retry(lambda: read_ledger(self._client, self._ref))
        succeeded = {one.uid for one in outcomes if one.outcome is OutcomeKind.SUCCEEDED}
        return succeeded.issuperset(pod.metadata.uid for pod in found.pods)
