"""Delete a gang, ended or not: after its delivery, by its policy, or on purpose. Then its pods are released.

A live gang is deleted in the foreground, so its Job stays until its pods are released, and whoever deletes it may die.
Every function is repeatable.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.ending.conditional_deletion import Deletion, delete_job_if
from airflow_provider_gangjobs.ending.release import drain_pods, release_pods
from airflow_provider_gangjobs.jobs.claim import is_gone, mark_delivered_by
from airflow_provider_gangjobs.jobs.retrying_requests import RetryingRequests
from airflow_provider_gangjobs.kube.labels import ANNOTATION_DELETED_BY

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


async def delete(client: Client, ref: GangRef, *, deleted_by: str = "") -> bool:
    """Delete the Job of exactly this uid, and release its pods. Returns false if the Job was gone."""
    deletion = await delete_job(client, ref, deleted_by=deleted_by)
    await release_deleted(client, ref, deletion, release_held=True)
    return deletion.deleted


async def delete_job(client: Client, ref: GangRef, *, deleted_by: str = "", clock: Clock | None = None) -> Deletion:
    """Delete the Job as `delete` does, without the release of the pods.

    :param deleted_by: Who deletes the gang on purpose. The Job says so before it is deleted, because whoever follows
        the gang sees only the last state of the Job.
    """
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    if deleted_by:
        await requests.jobs(ref).patch({"metadata": {"annotations": {ANNOTATION_DELETED_BY: deleted_by}}})
    return await delete_job_if(requests, ref, lambda job: True)


async def discard(client: Client, ref: GangRef, claim_id: str, *, release_held: bool = False) -> bool:
    """Delete the gang if `claim_id` is responsible for it. Returns false if the gang was left alone.

    :param release_held: Also release the pods of a gang that has ended. Its Job stays until they are released.
    """
    requests = RetryingRequests(client, ref.namespace)
    deletion = await delete_job_if(requests, ref, lambda job: job.holds_claim(claim_id), foreground=release_held)
    if deletion.kept is None:
        await release_deleted(client, ref, deletion, release_held=release_held)
    return deletion.kept is None


async def deliver(
    client: Client, ref: GangRef, claim_id: str, *, release_held: bool = False, delete: bool = False
) -> bool:
    """Mark the gang as delivered, release its held pods, and delete its Job, if `claim_id` is responsible for the gang.

    Returns false if the gang was left alone. The pods of a gang whose Job is gone are released, too.
    """
    marked = await mark_delivered_by(client, ref, claim_id, at=datetime.now(UTC))
    if marked is None and not await is_gone(client, ref):
        return False
    if release_held:
        await release_pods(client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)
    if not delete or marked is None:
        return True
    requests = RetryingRequests(client, ref.namespace)
    return (await delete_job_if(requests, ref, lambda job: job.holds_claim(claim_id), seen=marked)).kept is None


async def release_deleted(client: Client, ref: GangRef, deletion: Deletion, *, release_held: bool = False) -> None:
    """Release the pods of a gang whose Job was deleted, or was gone.

    :param release_held: Also release the pods of a gang that had ended.
    """
    job = deletion.job if deletion.version is not None else None
    if job is None:
        await drain_pods(client, ref, may_get_pods=False)
    elif not job.never_ran and (release_held or not job.is_ended):
        await drain_pods(client, ref, may_get_pods=may_get_pods(job), roles=job.role_names)


def may_get_pods(job: StoredGang) -> bool:
    """Return whether the Job controller may be about to create pods of a Job that was deleted in this version. Pure.

    The Jobs of the other roles of a gang are started before the main Job.
    """
    return not job.is_ended and (not job.is_suspended or job.has_roles)


__all__ = ["delete", "delete_job", "deliver", "discard", "may_get_pods", "release_deleted"]
