"""The Jobs of the roles after the first one, when a gang is adopted or its submission fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.state.gang_jobs import jobs_to_end, must_delete_job_set
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.jobs.retrying_requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import Object


async def extend_time_limits(requests: RetryingRequests, gang: StoredGang, limit_s: int | None) -> None:
    """Give the Jobs of a gang other than the main Job this time limit, if theirs is shorter. Safe to repeat.

    :param gang: The gang as it was before it was adopted.
    :param limit_s: The time limit in seconds; `None` for no time limit, which changes nothing.
    """
    if limit_s is None:
        return
    for one in jobs_to_end(gang):
        if one.metadata.uid != gang.ref.uid and (one.spec.active_deadline_seconds or limit_s) < limit_s:
            await requests.jobs(StoredGang(one).ref).patch({"spec": {"activeDeadlineSeconds": limit_s}})


async def start_role(requests: RetryingRequests, name: str, uid: str, generation: int) -> Object:
    """Let the Job of a role that is not the first one run, unless the Job was ended since it was read. Not retried.

    :param generation: The generation that was read. A halt changes it.

    Raises:
        Invalid: the Job has changed.
    """
    seen = {"/metadata/uid": uid, "/metadata/generation": generation}
    return await requests.patch_job_if(name, seen, {"/spec/suspend": False})


async def end_roles(requests: RetryingRequests, ref: GangRef) -> None:
    """End the Jobs of the other roles of a gang whose main Job is halted. Their Jobs fail. Safe to repeat.

    Raises:
        ClusterError: it is unknown whether the Jobs have ended.
    """
    jobs = requests.jobs(ref)
    gang = await jobs.read()
    if gang is not None and gang.ref == ref:
        await jobs.end_jobs(gang)


async def end_roles_of_halted_gang(requests: RetryingRequests, ref: GangRef) -> None:
    """End the Jobs of the other roles if the gang was halted while the submission started them. Never raises."""
    with suppress(ClusterError):  # whoever follows the gang ends these Jobs, too
        stored = await requests.find(JOBS, ref.name)
        if stored is not None and read_job(stored).is_halted:
            await end_roles(requests, ref)


async def finish_halts(requests: RetryingRequests, jobs: list[StoredGang]) -> None:
    """End the roles that still run of gangs that were halted. Whoever halted a gang may have died in between."""
    for job in jobs:
        if job.is_halted and (jobs_to_end(job) or must_delete_job_set(job)):
            await end_roles(requests, job.ref)


__all__ = ["end_roles", "end_roles_of_halted_gang", "extend_time_limits", "finish_halts", "start_role"]
