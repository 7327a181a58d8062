"""The Jobs of the roles after the first one, when a gang is adopted or its submission fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.roles import parts_to_end

if TYPE_CHECKING:
    from airflow_provider_gangjobs.submission.context import Progress
    from airflow_provider_gangjobs.submission.requests import Object, RetryingRequests


async def extend_time_limits(requests: RetryingRequests, record: Object) -> None:
    """Give the Jobs of the other roles the time limit of the record, if theirs is shorter. Safe to repeat.

    :param record: The Job of the first role after the patch that adopted it.
    """
    gang = await requests.read_gang(record)
    limit_s = gang.active_deadline_s
    if gang.time_limit is None or limit_s is None:
        return
    for part in parts_to_end(gang):
        if (part.spec.active_deadline_seconds or limit_s) < limit_s:
            await requests.mark_job(Job(part).ref, {"spec": {"activeDeadlineSeconds": limit_s}})


async def end_roles_of_halted_gang(progress: Progress) -> None:
    """End the Jobs of the other roles if the gang was halted while the submission started them. Never raises."""
    with suppress(ClusterError):  # whoever follows the gang ends these Jobs, too
        stored = await progress.requests.find(JOBS, progress.attempt.name)
        if stored is not None and read_job(stored).is_halted:
            await progress.requests.end_parts(progress.ref)


async def finish_halts(requests: RetryingRequests, jobs: list[Job]) -> None:
    """End the roles that still run of gangs that were halted. Whoever halted a gang may have died in between."""
    for job in jobs:
        if job.is_halted and parts_to_end(job):
            await requests.end_parts(job.ref)


__all__ = ["end_roles_of_halted_gang", "extend_time_limits", "finish_halts"]
