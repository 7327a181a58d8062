"""Makes a suspended Job fail if the Job was halted or its activeDeadlineSeconds is 0. The rules are `gang.state.halt`.

If Kueue manages the Job, Kueue and the Job controller act on the same change of the Job: Kueue suspends the Job again,
because its Workload is inactive, and the Job controller lets the Job fail, because its deadline has passed. The Job
fails unless Kueue writes first. So the Job is read again, and the change is repeated if the Job is suspended.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.http.transport import current_deadline
from airflow_provider_gangjobs.cluster.resources import JOB_SETS, JOBS
from airflow_provider_gangjobs.gang.identity import is_owned_by
from airflow_provider_gangjobs.gang.state.halt import FinishStep, finish_patch, next_finish_step
from airflow_provider_gangjobs.jobs.read import get_main_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef

log = logging.getLogger(__name__)

PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
"""The pause before each read of the Job, in seconds. A sweep continues with a Job that is suspended after the last."""
BRIEF_PAUSES_S: Final = (0.0, 0.2, 0.5)
"""The pauses where a process is about to be killed."""


async def finish_halted(client: Client, ref: GangRef, *, clock: Clock, pauses_s: Sequence[float] = PAUSES_S) -> bool:
    """Make a suspended Job fail if the Job was halted or its activeDeadlineSeconds is 0. Raises no `ClusterError`.

    Of a gang with roles, this is the main Job. Safe to repeat.

    :param pauses_s: The pause before each read of the Job, in seconds. No pause continues after the deadline of the
        requests, see `cluster.request_deadline`.
    :return: False if the Job may stay suspended.
    """
    problem = "its queue has suspended the Job again, or the Job controller has not answered yet"
    for pause_s in pauses_s:
        if clock.monotonic() + pause_s > current_deadline():
            break
        await clock.sleep(pause_s)
        try:
            job = await get_main_job(client, ref)
            if job is None or (step := next_finish_step(job)) is FinishStep.NOTHING:
                return True
            if step is FinishStep.WAIT:
                continue
            is_deactivated = job.is_queued_by_kueue and await _deactivate_workload(client, ref)
            await patch_uid(
                client, JOBS, ref.name, ref.namespace, ref.uid, finish_patch(job, is_deactivated=is_deactivated)
            )
            # Nothing suspends the Job again, or the Job waits for its queue. The main Job of a JobSet names no queue,
            # and Kueue suspends it again if Kueue is configured with `manageJobsWithoutQueueName`.
            if not is_deactivated and not job.has_job_set:
                return not job.is_queued_by_kueue
        except ClusterError as error:
            problem = str(error)
            if not (error.transient or error.may_have_applied or isinstance(error, Conflict)):
                break
    log.info("Gang %s is over, and its Job has not failed yet: %s", ref, problem)
    return False


async def delete_job_set(client: Client, ref: GangRef) -> None:
    """Delete the JobSet of a gang with roles, with its Jobs and pods. Safe to repeat.

    The JobSet and its Jobs stay until their pods are gone.

    Raises:
        ClusterError: it is unknown whether the JobSet is deleted.
    """
    from airflow_provider_gangjobs.cluster.client import PropagationPolicy

    with suppress(NotFound):
        metadata = (await client.get(JOB_SETS, ref.name, ref.namespace))["metadata"]
        if is_owned_by(metadata, ref.uid) and "deletionTimestamp" not in metadata:
            await client.delete(
                JOB_SETS,
                ref.name,
                ref.namespace,
                uid=metadata["uid"],
                propagation_policy=PropagationPolicy.FOREGROUND,
            )


async def _deactivate_workload(client: Client, ref: GangRef) -> bool:
    # Few tasks have a queue, and each process that resumes a task would pay for the import.
    from airflow_provider_gangjobs.cluster.kueue import Deactivation, deactivate_workload

    return await deactivate_workload(client, ref.namespace, ref.uid) is Deactivation.DONE


__all__ = ["BRIEF_PAUSES_S", "PAUSES_S", "delete_job_set", "finish_halted"]
