"""Stop: the pods of a gang end, and its Job stays as evidence, and fails. The rules are `gang.state.stored_gang`.

1. A mark with the reason, and a deadline of zero, are written on the main Job, in the version that was judged.
2. A main Job that is suspended is made to fail (`finish_stop`), and the Jobs of the other roles end (`end_jobs`).

Whoever dies in between leaves a Job that says that it is stopped, and a follower, a submission, or a sweep goes on.
Every function is repeatable.

If Kueue manages a Job that was stopped, Kueue and the Job controller act on the same change of the Job: Kueue suspends
the Job again, because its Workload is inactive, and the Job controller lets the Job fail, because its deadline has
passed. The Job fails unless Kueue writes first. So `finish_stop` reads the Job again, and repeats the change if the Job
is suspended.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import patch_uid, patch_version, version_of
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.http.transport import current_deadline
from airflow_provider_gangjobs.gang.identity import is_owned_by
from airflow_provider_gangjobs.gang.state.stopped import end_patch
from airflow_provider_gangjobs.gang.state.stored_gang import (
    StoredGang,
    build_gang,
    finish_patch,
    is_kept_from_failing,
    is_to_fail,
    jobs_to_end,
    must_delete_job_set,
    read_job,
    stop_patch,
)
from airflow_provider_gangjobs.jobs.requests import get_job, get_main_job
from airflow_provider_gangjobs.kube.resources import JOB_SETS, JOBS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests

log = logging.getLogger(__name__)

PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
"""The pause before each read of the Job, in seconds. A sweep continues with a Job that is suspended after the last."""
BRIEF_PAUSES_S: Final = (0.0, 0.2, 0.5)
"""The pauses where a process is about to be killed."""


async def stop(
    requests: RetryingRequests,
    ref: GangRef,
    stopped: Stopped,
    *,
    only_if: Callable[[StoredGang], bool] = lambda _: True,
    seen: StoredGang | None = None,
    pauses_s: Sequence[float] = BRIEF_PAUSES_S,
) -> bool:
    """Stop a gang that has not ended, if `only_if` holds for the version of its Job that the server changes.

    Returns false if the gang was left alone, or is gone. A gang that was stopped before keeps its mark. The next
    submission of its task is a new attempt.

    :param seen: The gang as it was just read, which saves the first read.
    :param pauses_s: The pause before each read of the Job, in seconds; see `finish_stop`. Without pauses, a suspended
        Job stays suspended, because the caller deletes it.

    Raises:
        Conflict: others changed the Job before each try.
        ClusterError: it is unknown whether the gang is stopped, or whether the Jobs of its other roles have ended. A
            follower of the gang, or another stop, ends them.
    """
    is_sent = False

    async def mark() -> StoredGang | None:
        nonlocal seen, is_sent
        gang, seen = seen or await get_job(requests.client, ref), None
        if gang is None or gang.ref != ref:
            return None
        if is_sent and gang.is_stopped:  # by a request whose answer was lost, or by somebody else
            return gang.main
        if gang.problem or gang.is_ended or not only_if(gang):
            return None
        is_sent, patch = True, stop_patch(stopped, gang.main)
        with suppress(NotFound):
            return read_job(await patch_version(requests.client, JOBS, version_of(gang.view.metadata), patch))
        return None

    main_job = await requests.retry(mark, after_conflict=True)
    if main_job is not None:
        await continue_stop(requests, main_job, pauses_s=pauses_s)
    return main_job is not None


async def continue_stop(
    requests: RetryingRequests, gang: StoredGang, *, pauses_s: Sequence[float] = BRIEF_PAUSES_S
) -> None:
    """Do what is left after the mark was written, whoever has written it.

    :param gang: The gang as it was just read.

    Raises:
        ClusterError: it is unknown whether the Jobs of the other roles have ended.
    """
    if pauses_s and is_kept_from_failing(gang):
        await finish_stop(requests.client, gang.ref, pauses_s=pauses_s)
    if gang.lacks_jobs:
        stored = await requests.retry(lambda: get_job(requests.client, gang.ref))
        gang = stored if stored is not None and stored.ref == gang.ref else gang
    await end_jobs(requests, gang)


async def finish_stop(client: Client, ref: GangRef, *, pauses_s: Sequence[float] = PAUSES_S) -> bool:
    """Make a suspended Job fail if the gang was stopped or its activeDeadlineSeconds is 0. Raises no `ClusterError`.

    Of a gang with roles, this is the main Job.

    :param pauses_s: The pause before each read of the Job, in seconds. No pause continues after the deadline of the
        requests, see `cluster.request_deadline`.
    :return: False if the Job may stay suspended.
    """
    problem = "its queue has suspended the Job again, or the Job controller has not answered yet"
    for pause_s in pauses_s:
        if client.clock.monotonic() + pause_s > current_deadline():
            break
        await client.clock.sleep(pause_s)
        try:
            job = await get_main_job(client, ref)
            if job is None or not is_to_fail(job):
                return True
            if not job.is_suspended:
                continue
            is_deactivated = job.queue is not None and await _deactivate_workload(client, ref)
            await patch_uid(
                client, JOBS, ref.name, ref.namespace, ref.uid, finish_patch(job, is_deactivated=is_deactivated)
            )
            # Nothing suspends the Job again, or the Job waits for its queue. The main Job of a JobSet names no queue,
            # and Kueue suspends it again if Kueue is configured with `manageJobsWithoutQueueName`.
            if not is_deactivated and not job.record.has_job_set:
                return job.queue is None
        except ClusterError as error:
            problem = str(error)
            if not (error.transient or error.may_have_applied or isinstance(error, Conflict)):
                break
    log.info("Gang %s is over, and its Job has not failed yet: %s", ref, problem)
    return False


async def _deactivate_workload(client: Client, ref: GangRef) -> bool:
    # Few tasks have a queue, and each process that resumes a task would pay for the import.
    from airflow_provider_gangjobs.cluster.kueue import deactivate_workload

    return await deactivate_workload(client, ref.namespace, ref.uid)


async def end_jobs(requests: RetryingRequests, gang: StoredGang) -> None:
    """End the Jobs of a gang with roles that still run, after one of them has failed or the gang was stopped.

    Their Jobs fail. The main Job of a gang that was stopped is left out, because `stop` has ended it.

    :param gang: The gang as it was just read.

    Raises:
        ClusterError: it is unknown whether the Jobs have ended.
    """
    for one in jobs_to_end(gang):
        if one.metadata.uid != gang.ref.uid or not gang.is_stopped:
            await requests.patch_job(build_gang(one).ref, end_patch())
    if must_delete_job_set(gang):
        await requests.retry(partial(delete_job_set, requests.client, gang.ref), after_conflict=True)


async def delete_job_set(client: Client, ref: GangRef) -> None:
    """Delete the JobSet of a gang with roles, with its Jobs and pods. Not retried.

    The JobSet and its Jobs stay until their pods are gone.

    Raises:
        ClusterError: it is unknown whether the JobSet is deleted.
    """
    with suppress(NotFound):
        metadata = (await client.get(JOB_SETS, ref.name, ref.namespace))["metadata"]
        if is_owned_by(metadata, ref.uid) and "deletionTimestamp" not in metadata:
            await client.delete(
                JOB_SETS,
                ref.name,
                ref.namespace,
                uid=metadata["uid"],
                propagation_policy="Foreground",
            )
