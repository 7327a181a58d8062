"""Stop a gang, and kill the live gangs of a task if the task instance that ends them holds their claim.

A stop ends the pods of a gang and frees their capacity, and its Job stays and fails. The rules are `gang.state.stop`.
The reason is written on the Job first. Then a Job that is suspended is made to fail, and the Jobs of the other roles
end. Whoever dies in between leaves a Job that says that it is stopped, and a follower, a submission, or a sweep goes
on. Every function is repeatable.

A kill is a deletion or a stop. A gang that has ended, or that another try has adopted, is left alone. A kill has two
steps, because the gang ends by itself after the first one: `begin_kill` deletes the gang, and `finish_kill` releases
its pods. Nobody follows the gang any more who would record their outcomes.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.ending.delete_gang import Deletion, delete_job_if, may_get_pods, release_deleted
from airflow_provider_gangjobs.ending.release import drain_pods
from airflow_provider_gangjobs.gang.identity import GangRef, task_selector
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stop import needs_finish
from airflow_provider_gangjobs.jobs.requests import (
    BRIEF_PAUSES_S,
    PAUSES_S,
    RetryingRequests,
    end_roles,
    finish_stopped,
    get_job,
    get_main_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import Object


async def stop(client: Client, ref: GangRef, stopped: Stopped) -> bool:
    """Stop a gang. The next submission of its task is a new attempt. Returns false if the Job is gone.

    Raises:
        ClusterError: it is unknown whether the gang is stopped.
    """
    job = await get_main_job(client, ref)
    if job is None:
        return False
    requests = RetryingRequests(client, ref.namespace)
    return await stop_job(requests, job, stopped, pauses_s=PAUSES_S)


async def stop_job(
    requests: RetryingRequests,
    job: StoredGang,
    stopped: Stopped,
    *,
    claim_id: str | None = None,
    pauses_s: Sequence[float] = BRIEF_PAUSES_S,
) -> bool:
    """Stop a gang that was just read, as `stop` does.

    :param claim_id: Stop the gang only if this task instance is responsible for the gang when the server applies the
        patch. If another one is responsible, the function returns false.
    :param pauses_s: The pause before each read of the Job, in seconds; see `finish_stopped`.

    Raises:
        ClusterError: it is unknown whether the gang is stopped, or whether the Jobs of its other roles have ended. A
            follower of the gang, or another stop, ends them.
    """
    before = await requests.jobs(job.ref).stop(job, stopped, claim_id=claim_id)
    if before is None:
        return False
    if needs_finish(before):
        await finish_stopped(requests.client, job.ref, clock=requests.clock, pauses_s=pauses_s)
    if before.has_roles:
        await end_roles(requests, job.ref)
    return True


class KillResult(StrEnum):
    """The result of a kill of a gang."""

    DELETED = "deleted"
    ENDED = "ended"
    """The gang has ended, or was stopped. The Job and the ledger stay."""
    LEFT_ALONE = "left alone"
    """The Job is gone, or another task instance is responsible for the gang."""


def kill_result(job: StoredGang, claim_id: str) -> KillResult:
    """Return the result of a kill by `claim_id`, which deletes a live gang that `claim_id` is responsible for. Pure."""
    if not job.holds_claim(claim_id):
        return KillResult.LEFT_ALONE
    is_live = state_of(job) in {SubmissionState.IN_PROGRESS, SubmissionState.DELETING}
    return KillResult.DELETED if is_live else KillResult.ENDED


class Kill(Struct, frozen=True):
    """A kill that has begun. The pods of a gang that is deleted are still to be released."""

    ref: GangRef
    result: KillResult
    deletion: Deletion


async def begin_kill(client: Client, ref: GangRef, claim_id: str, *, seen: Object | None = None) -> Kill:
    """Delete the gang by the rule of `kill_result`. The pods of the gang are not released.

    :param seen: The Job as it was just read.

    Raises:
        ClusterError: it is unknown whether the gang is deleted.
    """
    requests = RetryingRequests(client, ref.namespace)

    def is_killed(job: StoredGang) -> bool:
        return kill_result(job, claim_id) is KillResult.DELETED

    deletion = await delete_job_if(requests, ref, is_killed, seen=seen)
    if deletion.kept is not None:
        return Kill(ref, kill_result(deletion.kept, claim_id), deletion)
    return Kill(ref, KillResult.DELETED if deletion.deleted else KillResult.LEFT_ALONE, deletion)


async def finish_kill(client: Client, begun: Kill) -> None:
    """Release the pods of the gang that `begin_kill` has deleted, or whose Job was gone. Safe to repeat."""
    if begun.deletion.kept is None:
        await release_deleted(client, begun.ref, begun.deletion)


async def stop_live(client: Client, ref: GangRef, claim_id: str, stopped: Stopped) -> bool:
    """Stop the gang if it is live and `claim_id` is responsible for it. Otherwise return false."""
    gang = await get_job(client, ref)
    if gang is None or gang.ref != ref or kill_result(gang, claim_id) is not KillResult.DELETED:
        return False
    return await stop_job(RetryingRequests(client, ref.namespace), gang, stopped, claim_id=claim_id)


async def end_live_gangs(
    client: Client,
    key: TaskKey,
    claim_id: str,
    *,
    namespace: str,
    stopped: Stopped | None,
    on_ended: Callable[[GangRef], None],
) -> list[GangRef]:
    """Delete or stop the task's live gangs that `claim_id` is responsible for, and release their pods.

    Returns the gangs that were ended.

    :param stopped: Why the gangs are stopped; `None` if they are deleted.
    :param on_ended: Called with each gang that is deleted or stopped, before its pods are released.
    """
    requests = RetryingRequests(client, namespace)
    ended: list[StoredGang] = []
    for stored, gang in await _live_gangs(requests, key, claim_id):
        if stopped is None:
            has_ended = (await begin_kill(client, gang.ref, claim_id, seen=stored)).result is KillResult.DELETED
        else:
            has_ended = await stop_job(requests, gang, stopped, claim_id=claim_id)
        if has_ended:
            ended.append(gang)
    for gang in ended:
        on_ended(gang.ref)
    drains = (drain_pods(client, gang.ref, may_get_pods=may_get_pods(gang), roles=gang.role_names) for gang in ended)
    await asyncio.gather(*drains)
    return [gang.ref for gang in ended]


async def is_live(client: Client, ref: GangRef) -> bool:
    """Return whether the Job of exactly this uid exists and has not ended.

    Raises:
        ClusterError: this is unknown.
    """
    gang = await get_job(client, ref)
    return gang is not None and gang.ref == ref and state_of(gang) is SubmissionState.IN_PROGRESS


async def live_attempts(client: Client, key: TaskKey, claim_id: str, *, namespace: str) -> list[StoredGang]:
    """Return the task's live gangs that `claim_id` is responsible for."""
    return [gang for _, gang in await _live_gangs(RetryingRequests(client, namespace), key, claim_id)]


async def _live_gangs(requests: RetryingRequests, key: TaskKey, claim_id: str) -> list[tuple[Object, StoredGang]]:
    found = await requests.list(JOBS, task_selector(key.digest))
    gangs = [(stored, await requests.read_gang(stored)) for stored in found]
    return [
        (stored, gang)
        for stored, gang in gangs
        if state_of(gang) is SubmissionState.IN_PROGRESS and gang.holds_claim(claim_id)
    ]
