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
from airflow_provider_gangjobs.exceptions import PreviousAttemptRunning
from airflow_provider_gangjobs.gang.identity import task_selector
from airflow_provider_gangjobs.gang.state.job_state import JobState, job_state
from airflow_provider_gangjobs.gang.state.pods import attempt_of, gang_ref_of, has_ended, is_held, owner_uid
from airflow_provider_gangjobs.kube.views import PodView, view

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.jobs.retrying_requests import RetryingRequests

log = logging.getLogger(__name__)

PAUSE_CAP_S: Final = 5.0


class PreviousGangs(Struct, frozen=True):
    """How a submission waits for the gangs of earlier attempts."""

    release: Callable[[GangRef], Awaitable[object]]
    """Removes the provider's finalizer from the pods of a gang."""
    wait_s: float
    """For how long the submission waits, in seconds. After that, it fails with `PreviousAttemptRunning`."""
    is_retry: bool = False
    """The task may have had gangs whose Jobs are gone. Their pods are looked for, too, with one request."""


def may_still_run(job: Job) -> bool:
    """Return whether pods of a gang may run although the gang is not live any more. Pure.

    The Job controller reports an end only when all pods have ended (`podReplacementPolicy: Failed`).
    """
    if job.is_ended:
        return False
    state = job_state(job)
    return state is JobState.TERMINATING or (state is JobState.HALTED and job.has_pods_left)


async def wait_for_previous(
    requests: RetryingRequests,
    digests: Sequence[str],
    jobs: Sequence[Job],
    deleted: Sequence[Job],
    previous: PreviousGangs,
) -> bool:
    """Wait until no pod of an earlier attempt runs. Returns whether the function has waited.

    Pods of gangs that are being deleted, or whose Jobs are gone, are released meanwhile: nobody else may do that.

    :param digests: The digests of the task, see `SubmissionKey.digests`.
    :param jobs: All Jobs of the task, as they were listed.
    :param deleted: Of these, the Jobs that the submission has just deleted.

    Raises:
        PreviousAttemptRunning: pods still run after `previous.wait_s` seconds, or at the deadline of the requests.
        ClusterError: the pods could not be listed or released.
    """
    deleted_uids = {job.ref.uid for job in deleted}
    waited_for = [job for job in jobs if job.ref.uid in deleted_uids or may_still_run(job)]
    if not waited_for and not previous.is_retry:
        return False
    give_up_at = requests.clock.monotonic() + previous.wait_s
    backoff = requests.backoff()
    kept = {job.ref.uid for job in jobs} - {job.ref.uid for job in waited_for}
    halted = {job.ref.uid for job in waited_for if job_state(job) is JobState.HALTED}
    has_waited = False
    while True:
        if has_waited and await _has_other_jobs(requests, digests, jobs):
            return True
        listed = [view(PodView, pod) for pod in await requests.list(PODS, task_selector(*digests))]
        pods = [pod for pod in listed if owner_uid(pod) not in kept]
        for ref in _gangs_of(pod for pod in pods if is_held(pod) and owner_uid(pod) not in halted):
            await previous.release(ref)
        running = [pod for pod in pods if not has_ended(pod)]
        if not running:
            return has_waited
        error = _still_running(running)
        pause_s = min(backoff.next(), PAUSE_CAP_S)
        if requests.clock.monotonic() + pause_s > give_up_at or not await requests.sleep_before_retry(pause_s):
            raise error
        if not has_waited:
            log.info("%s", error)
        has_waited = True


async def _has_other_jobs(requests: RetryingRequests, digests: Sequence[str], jobs: Sequence[Job]) -> bool:
    """Return whether another submitter has created an attempt meanwhile. Its pods are no reason to wait."""
    known = {job.ref.uid for job in jobs}
    return any(job["metadata"]["uid"] not in known for job in await requests.list(JOBS, task_selector(*digests)))


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
