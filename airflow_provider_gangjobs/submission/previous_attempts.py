"""Waits for the pods of earlier attempts before another attempt is submitted, so that two attempts never run at once.

A pod that is being deleted runs until its program has ended, at most for its grace period, which may be hours where a
program saves a checkpoint. Two attempts that run at once would write to the same place.

The Job of a gang that was deleted while it was live stays until its pods are gone (`propagation_of`), so the list of
the task's Jobs shows whether there is anything to wait for. If there is nothing, no request is sent.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.ending.release import release_pods
from airflow_provider_gangjobs.exceptions import PreviousAttemptRunning
from airflow_provider_gangjobs.gang.identity import task_selector
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.pods import attempt_of, gang_ref_of, has_ended, is_held, owner_uid
from airflow_provider_gangjobs.kube.views import PodView, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests
    from airflow_provider_gangjobs.submission.request import PreviousGangs

log = logging.getLogger(__name__)

PAUSE_CAP_S: Final = 5.0


def may_still_run(job: StoredGang) -> bool:
    """Return whether pods of a gang may run although the gang is not live any more. Pure.

    The Job controller reports an end only when all pods have ended (`podReplacementPolicy: Failed`).
    """
    if job.is_ended:
        return False
    state = state_of(job)
    return state is SubmissionState.DELETING or (state is SubmissionState.HALTED and job.has_pods_left)


class EarlierAttempts(Struct, frozen=True):
    """The earlier attempts of a task, whose pods may still run when another attempt is submitted."""

    client: Client
    requests: RetryingRequests
    digests: Sequence[str]
    """The digests of the task, see `SubmissionKey.digests`."""
    jobs: Sequence[StoredGang]
    """All Jobs of the task, as they were listed."""
    deleted: Sequence[StoredGang]
    """Of these, the Jobs that the submission has just deleted."""

    async def wait(self, previous: PreviousGangs) -> bool:
        """Wait until no pod of an earlier attempt runs. Returns whether the method has waited.

        Pods of gangs that are being deleted, or whose Jobs are gone, are released meanwhile: nobody else may do that.

        Raises:
            PreviousAttemptRunning: pods still run after `previous.wait_s` seconds, or at the deadline of the requests.
            ClusterError: the pods could not be listed or released.
        """
        deleted = {job.ref.uid for job in self.deleted}
        waited_for = [job for job in self.jobs if job.ref.uid in deleted or may_still_run(job)]
        if not waited_for and not previous.is_retry:
            return False
        requests, backoff = self.requests, self.requests.backoff()
        give_up_at = requests.clock.monotonic() + previous.wait_s
        has_waited = False
        while True:
            if has_waited and await self._has_other_jobs():
                return True
            running = await self._release_and_list_running(waited_for)
            if not running:
                return has_waited
            error = _still_running(running)
            pause_s = min(backoff.next(), PAUSE_CAP_S)
            if requests.clock.monotonic() + pause_s > give_up_at or not await requests.sleep_before_retry(pause_s):
                raise error
            if not has_waited:
                log.info("%s", error)
            has_waited = True

    async def _release_and_list_running(self, waited_for: Sequence[StoredGang]) -> list[PodView]:
        kept = {job.ref.uid for job in self.jobs} - {job.ref.uid for job in waited_for}
        halted = {job.ref.uid for job in waited_for if state_of(job) is SubmissionState.HALTED}
        listed = [view(PodView, pod) for pod in await self.requests.list(PODS, task_selector(*self.digests))]
        pods = [pod for pod in listed if owner_uid(pod) not in kept]
        for ref in _gangs_of(pod for pod in pods if is_held(pod) and owner_uid(pod) not in halted):
            await release_pods(self.client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)
        return [pod for pod in pods if not has_ended(pod)]

    async def _has_other_jobs(self) -> bool:
        """Return whether another submitter has created an attempt meanwhile. Its pods are no reason to wait."""
        known = {job.ref.uid for job in self.jobs}
        listed = await self.requests.list(JOBS, task_selector(*self.digests))
        return any(job["metadata"]["uid"] not in known for job in listed)


def _gangs_of(pods: Iterable[PodView]) -> list[GangRef]:
    return list(dict.fromkeys(ref for pod in pods if (ref := gang_ref_of(pod)) is not None))


def _still_running(running: Sequence[PodView]) -> PreviousAttemptRunning:
    first = running[0]
    gang = next(iter(_gangs_of(running)), None)
    return PreviousAttemptRunning(
        ref=str(gang) if gang else first.metadata.namespace,
        uid=gang.uid if gang else "",
        attempt=attempt_of(first),
        pods=len(running),
        nodes=tuple(sorted({pod.spec.node_name for pod in running if pod.spec.node_name})),
    )
