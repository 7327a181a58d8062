"""End a gang from outside: halt the gang, or delete its Job with all that the Job owns. Every function is repeatable.

A deletion may depend on the Job: on which task instance is responsible, and on whether the Job has ended. Such a
deletion applies only to the version of the Job that was judged. If the Job changes in between, the new version is
judged.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.ending.conditional_deletion import Removal, remove_job_if
from airflow_provider_gangjobs.gang.identity import task_selector
from airflow_provider_gangjobs.gang.labels import ANNOTATION_DELETED_BY
from airflow_provider_gangjobs.gang.state.halt import halt_patch, needs_finish
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.submission_state import SubmissionState, state_of
from airflow_provider_gangjobs.jobs.claim import patch_claimed
from airflow_provider_gangjobs.jobs.halted import BRIEF_PAUSES_S, PAUSES_S, finish_halted
from airflow_provider_gangjobs.jobs.retrying_requests import RetryingRequests
from airflow_provider_gangjobs.jobs.role_jobs import end_roles
from airflow_provider_gangjobs.kube.names import pointers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client_protocol import ClientProtocol
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.kube.views import Object


log = logging.getLogger(__name__)


async def halt(
    client: ClientProtocol,
    ref: GangRef,
    *,
    reason: str,
    claim_id: str | None = None,
    seen: Object | None = None,
    clock: Clock | None = None,
    pauses_s: Sequence[float] = PAUSES_S,
) -> bool:
    """End the gang permanently. The pods end and free their capacity, and the Job stays and fails.

    The next submission of the task is a new attempt. Returns false if the Job is gone.

    :param claim_id: Halt the gang only if this task instance is responsible for the gang when the server applies the
        patch. If another one is responsible, the function returns false.
    :param seen: The Job as it was just read.
    :param pauses_s: The pause before each read of the Job, in seconds; see `finish_halted`.

    Raises:
        ClusterError: it is unknown whether the gang is halted.
    """
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    stored = seen or await requests.find(JOBS, ref.name)
    if stored is None or (job := read_job(stored)).ref != ref:
        return False
    if claim_id is None:
        return await halt_job(requests, job, reason, pauses_s=pauses_s)
    values = dict(pointers_of(halt_patch(reason, job)))
    if await patch_claimed(client, ref, claim_id, values, clock=clock) is None:
        return False
    await _finish_halted(requests, job, pauses_s)
    await _end_roles(requests, job)
    return True


async def halt_job(
    requests: RetryingRequests, job: Job, reason: str, *, pauses_s: Sequence[float] = BRIEF_PAUSES_S
) -> bool:
    """Halt the gang of a Job that was just read, whoever is responsible. Returns false if the Job is gone."""
    is_halted = await requests.jobs(job.ref).halt(job, reason)
    if is_halted:
        await _finish_halted(requests, job, pauses_s)
        await _end_roles(requests, job)
    return is_halted


async def _end_roles(requests: RetryingRequests, job: Job) -> None:
    """End the Jobs of the other roles of a halted gang.

    Raises:
        ClusterError: it is unknown whether they have ended. A follower of the gang, or another halt, ends them.
    """
    if job.has_roles:
        await end_roles(requests, job.ref)


async def halt_live(
    client: ClientProtocol, ref: GangRef, claim_id: str, *, reason: str, clock: Clock | None = None
) -> bool:
    """Halt the gang if it is live and `claim_id` is responsible for it. Otherwise return false."""
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    stored = await requests.find(JOBS, ref.name)
    if stored is None or kill_result(await requests.read_gang(stored), claim_id) is not KillResult.DELETED:
        return False
    return await halt(client, ref, reason=reason, claim_id=claim_id, seen=stored, clock=clock, pauses_s=BRIEF_PAUSES_S)


async def _finish_halted(requests: RetryingRequests, job: Job, pauses_s: Sequence[float]) -> None:
    """Let a Job fail that was suspended when it was halted. Raises no `ClusterError`."""
    if needs_finish(job):
        await finish_halted(requests.client, job.ref, clock=requests.clock, pauses_s=pauses_s)


async def remove(client: ClientProtocol, ref: GangRef, *, deleted_by: str = "", clock: Clock | None = None) -> Removal:
    """Delete the Job of exactly this uid, and all that it owns. Returns what was deleted.

    :param deleted_by: Who deletes the gang on purpose. The Job says so before it is deleted, because whoever follows
        the gang sees only the last state of the Job.
    """
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    if deleted_by:
        await requests.jobs(ref).patch({"metadata": {"annotations": {ANNOTATION_DELETED_BY: deleted_by}}})
    return await remove_job_if(requests, ref, lambda job: True)


class KillResult(StrEnum):
    """The result of a kill of a gang."""

    DELETED = "deleted"
    ENDED = "ended"
    """The gang has ended, or was halted. The Job and the ledger stay."""
    LEFT_ALONE = "left alone"
    """The Job is gone, or another task instance is responsible for the gang."""


class Kill(Struct, frozen=True):
    """A kill whose gang is deleted, and whose pods are still to be released."""

    ref: GangRef
    result: KillResult
    removal: Removal


def kill_result(job: Job, claim_id: str) -> KillResult:
    """Return the result of a kill by `claim_id`, which deletes a live gang that `claim_id` is responsible for. Pure."""
    if not job.holds_claim(claim_id):
        return KillResult.LEFT_ALONE
    return (
        KillResult.DELETED
        if state_of(job) in {SubmissionState.IN_PROGRESS, SubmissionState.DELETING}
        else KillResult.ENDED
    )


async def kill(
    client: ClientProtocol, ref: GangRef, claim_id: str, *, seen: Object | None = None, clock: Clock | None = None
) -> KillResult:
    """Delete the gang if it is live and `claim_id` is responsible for it, by the rule of `kill_result`.

    The pods of the gang are not released, see `remove_live`.

    :param seen: The Job as it was just read.

    Raises:
        ClusterError: it is unknown whether the gang is deleted.
    """
    return result_of(await remove_live(client, ref, claim_id, seen=seen, clock=clock), claim_id)


async def remove_live(
    client: ClientProtocol, ref: GangRef, claim_id: str, *, seen: Object | None = None, clock: Clock | None = None
) -> Removal:
    """Delete the gang as `kill` does. Returns what was deleted. The caller releases the pods of the gang."""
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    return await remove_job_if(requests, ref, lambda job: kill_result(job, claim_id) is KillResult.DELETED, seen=seen)


def result_of(removal: Removal, claim_id: str) -> KillResult:
    """Return the result of a kill by what `remove_live` has returned. Pure."""
    if removal.deleted:
        return KillResult.DELETED
    return KillResult.LEFT_ALONE if removal.kept is None or removal.job is None else kill_result(removal.job, claim_id)


async def delete_claimed(client: ClientProtocol, ref: GangRef, claim_id: str, *, seen: Object | None = None) -> bool:
    """Delete the Job, ended or not, if `claim_id` is responsible for the gang.

    Returns false if another task instance is responsible. Returns true if the Job was gone.

    :param seen: The Job as it was just read.

    Raises:
        ClusterError: it is unknown whether the gang is deleted.
    """
    return (await remove_claimed(client, ref, claim_id, seen=seen)).kept is None


async def remove_claimed(
    client: ClientProtocol,
    ref: GangRef,
    claim_id: str,
    *,
    seen: Object | None = None,
    foreground: bool = False,
    clock: Clock | None = None,
) -> Removal:
    """Delete the Job as `delete_claimed` does. Returns what was deleted.

    :param foreground: Keep the Job in the API server until its pods are released, even if the gang has ended.
    """
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    return await remove_job_if(requests, ref, lambda job: job.holds_claim(claim_id), seen=seen, foreground=foreground)


def may_get_pods(job: Job) -> bool:
    """Return whether the Job controller may be about to create pods of a Job that was deleted in this version. Pure.

    The Jobs of the other roles of a gang are started before the main Job.
    """
    return not job.is_ended and (not job.is_suspended or job.has_roles)


async def delete_if(
    client: ClientProtocol, ref: GangRef, judge: Callable[[Job], bool], *, clock: Clock | None = None
) -> bool:
    """Delete the Job of this uid in exactly the version for which `judge` holds. Returns whether it was deleted.

    Raises:
        ClusterError: it is unknown whether the Job is deleted.
    """
    return (await remove_job_if(RetryingRequests(client, ref.namespace, clock=clock), ref, judge)).deleted


async def is_live(client: ClientProtocol, ref: GangRef) -> bool:
    """Return whether the Job of exactly this uid exists and has not ended.

    Raises:
        ClusterError: this is unknown.
    """
    requests = RetryingRequests(client, ref.namespace)
    stored = await requests.find(JOBS, ref.name)
    job = await requests.read_gang(stored) if stored is not None else None
    return job is not None and job.ref == ref and state_of(job) is SubmissionState.IN_PROGRESS


class LiveGang(Struct, frozen=True):
    """A gang that runs."""

    ref: GangRef
    attempt: int
    disruptions: int
    """How many attempts in a row before this one were lost to disruptions."""


async def live_attempts(client: ClientProtocol, key: TaskKey, claim_id: str, *, namespace: str) -> list[LiveGang]:
    """Return the task's live gangs that `claim_id` is responsible for, with the numbers of their attempts."""
    jobs = await _live_jobs(client, key, claim_id, namespace)
    return [LiveGang(job.ref, job.attempt_number, job.disruptions) for _, job in jobs]


class EndedGang(Struct, frozen=True):
    """A gang that was deleted or halted while it was live. Its pods are still held."""

    ref: GangRef
    may_get_pods: bool
    """The Job controller may be about to create pods of the gang."""
    roles: tuple[str, ...] = ()
    """The names of the roles of the gang, each of which has a Job."""


async def end_live_gangs(
    client: ClientProtocol, key: TaskKey, claim_id: str, *, namespace: str, delete: bool, reason: str
) -> list[EndedGang]:
    """Delete or halt the task's live gangs that `claim_id` is responsible for. Returns these gangs.

    The caller releases the pods of the gangs.
    """
    ended = []
    for stored, job in await _live_jobs(client, key, claim_id, namespace):
        if delete:
            has_ended = await kill(client, job.ref, claim_id, seen=stored) is KillResult.DELETED
        else:
            has_ended = await halt(
                client, job.ref, reason=reason, claim_id=claim_id, seen=stored, pauses_s=BRIEF_PAUSES_S
            )
        if has_ended:
            ended.append(EndedGang(job.ref, may_get_pods(job), job.role_names))
    return ended


async def _live_jobs(client: ClientProtocol, key: TaskKey, claim_id: str, namespace: str) -> list[tuple[Object, Job]]:
    found = await client.list(JOBS, namespace, label_selector=task_selector(*key.digests))
    requests = RetryingRequests(client, namespace)
    jobs = [(stored, await requests.read_gang(stored)) for stored in found]
    return [
        (stored, job)
        for stored, job in jobs
        if state_of(job) is SubmissionState.IN_PROGRESS and job.holds_claim(claim_id)
    ]
