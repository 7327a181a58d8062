"""Halt a gang: its pods end and free their capacity, and its Job stays and fails. The rules are `gang.state.halt`.

The reason is written on the Job first. Then a Job that is suspended is made to fail, and the Jobs of the other roles
end. Whoever dies in between leaves a Job that says that it is halted, and a follower, a submission, or a sweep goes on.
Every function is repeatable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.state.halt import halt_patch, needs_finish
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.jobs.claim import patch_claimed
from airflow_provider_gangjobs.jobs.requests import BRIEF_PAUSES_S, PAUSES_S, RetryingRequests, end_roles, finish_halted
from airflow_provider_gangjobs.kube.names import pointers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef


async def halt(client: Client, ref: GangRef, *, reason: str, claim_id: str | None = None) -> bool:
    """Halt a gang. The next submission of its task is a new attempt. Returns false if the Job is gone.

    :param claim_id: Halt the gang only if this task instance is responsible for the gang when the server applies the
        patch. If another one is responsible, the function returns false.

    Raises:
        ClusterError: it is unknown whether the gang is halted.
    """
    requests = RetryingRequests(client, ref.namespace)
    stored = await requests.find(JOBS, ref.name)
    if stored is None or (job := read_job(stored)).ref != ref:
        return False
    return await halt_job(requests, job, reason, claim_id=claim_id, pauses_s=PAUSES_S)


async def halt_job(
    requests: RetryingRequests,
    job: StoredGang,
    reason: str,
    *,
    claim_id: str | None = None,
    pauses_s: Sequence[float] = BRIEF_PAUSES_S,
) -> bool:
    """Halt the gang of a Job that was just read, as `halt` does.

    :param pauses_s: The pause before each read of the Job, in seconds; see `finish_halted`.

    Raises:
        ClusterError: it is unknown whether the gang is halted, or whether the Jobs of its other roles have ended. A
            follower of the gang, or another halt, ends them.
    """
    if claim_id is None:
        is_halted = await requests.jobs(job.ref).halt(job, reason)
    else:
        values = dict(pointers_of(halt_patch(reason, job)))
        is_halted = await patch_claimed(requests.client, job.ref, claim_id, values) is not None
    if is_halted and needs_finish(job):
        await finish_halted(requests.client, job.ref, clock=requests.clock, pauses_s=pauses_s)
    if is_halted and job.has_roles:
        await end_roles(requests, job.ref)
    return is_halted


__all__ = ["halt", "halt_job"]
