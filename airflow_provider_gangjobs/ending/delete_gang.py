"""Delete a gang, ended or not: after its delivery, by its policy, or on purpose. Then its pods are released.

A Job is deleted in exactly the version that a rule was judged for: the DELETE carries the uid and the resourceVersion
of that version as preconditions. After a conflict, and after an answer that was lost, the Job is read and judged again
before the next DELETE. So a gang that another try adopts, or that ends, between the judgement and the DELETE is kept.

A live gang is deleted in the foreground, so its Job stays until its pods are released, and whoever deletes it may die.
Every function is repeatable.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.cluster.client import PropagationPolicy, patch_version, version_of
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.ending.release import drain_pods, release_pods
from airflow_provider_gangjobs.gang.state.stop import before_deletion, end_patch
from airflow_provider_gangjobs.gang.state.stopped import BY_DELETION, mark_patch
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.jobs.claim import is_gone, mark_delivered_by
from airflow_provider_gangjobs.jobs.requests import TRIES_MAX, RetryingRequests
from airflow_provider_gangjobs.kube.views import end_condition
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELETED_BY

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import Object


class Deletion(Struct, frozen=True):
    """The result of a deletion under a condition. A Job that was gone is neither kept nor deleted."""

    deleted: StoredGang | None = None
    """The gang as it was last judged, if its Job is deleted."""
    kept: StoredGang | None = None
    """The gang as it was last judged, if its Job was kept."""


async def delete_job_if(
    requests: RetryingRequests,
    ref: GangRef,
    judge: Callable[[StoredGang], bool],
    *,
    seen: Object | None = None,
    foreground: bool = False,
) -> Deletion:
    """Delete the Job of a gang, and so all that the Job owns, if `judge` holds for the version that the server deletes.

    The Jobs of the other roles are judged, too.

    :param seen: The Job as it was just read, which saves the first read.
    :param foreground: Delete in the foreground in any case, see `propagation_of`.

    Raises:
        Conflict: others changed the Job before each of `TRIES_MAX` deletions.
        ClusterError: it is unknown whether the Job is deleted.
    """
    deletion, backoff = _GangDeletion(requests, judge, foreground), requests.backoff()
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            stored, seen = seen or await requests.find(JOBS, ref.name), None
            if stored is None or stored["metadata"]["uid"] != ref.uid:
                return deletion.gone()
            return await deletion.try_once(stored)
        except ClusterError as error:
            if not tries_left or not (isinstance(error, Conflict) or error.transient or error.may_have_applied):
                raise
            if not await requests.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                raise
    raise AssertionError("the last try returns or raises")


def propagation_of(job: StoredGang) -> PropagationPolicy:
    """Return how a Job is deleted: in the foreground if its pods may still exist.

    In the foreground, the API server keeps the Job until its pods are gone, and pods that the harvest finalizer holds
    are not gone. So whoever releases the pods of a deleted gang can die at any time: the Job stays, and shows the next
    process that pods are to be released, that the number of the attempt is used, and that ranks may still run.
    """
    return PropagationPolicy.BACKGROUND if job.is_ended or job.never_ran else PropagationPolicy.FOREGROUND


@dataclass
class _GangDeletion:
    """Judges a gang by all its Jobs, and makes sure that a gang that was judged as live cannot succeed any more.

    The precondition of a deletion concerns one Job. If the main Job has ended or has no pods, the gang succeeds when
    the last of the other Jobs is complete, which does not change the main Job. So the main Job is marked as stopped,
    which keeps other tries from adopting the gang, and then a Job that has not ended is deleted in the version that
    was judged. If that Job is complete by then, the gang has succeeded, and the mark has no effect. A Job of a
    JobSet is made to fail instead, because the JobSet controller creates a deleted Job again.
    """

    requests: RetryingRequests
    judge: Callable[[StoredGang], bool]
    foreground: bool
    gang: StoredGang | None = field(default=None, init=False)
    """The gang as it was last judged."""
    may_be_deleted: bool = field(default=False, init=False)
    """Whether the answer to a DELETE was lost."""
    _cannot_succeed: bool = field(default=False, init=False)

    def gone(self) -> Deletion:
        """Return the result if the Job does not exist any more."""
        return Deletion(deleted=self.gang if self.may_be_deleted else None)

    async def try_once(self, stored: Object) -> Deletion:
        """Judge the Job and, if the judgement holds, send one DELETE.

        Raises:
            Conflict: the Job has changed since it was read.
            ClusterError: the request failed, or it is unknown whether the Job is deleted.
        """
        gang = self.gang
        if gang is None or not self._cannot_succeed:
            gang = self.gang = before_deletion(await self.requests.read_gang(stored))
            if not self.judge(gang):
                is_deleted = self.may_be_deleted and "deletionTimestamp" in stored["metadata"]
                return Deletion(deleted=gang) if is_deleted else Deletion(kept=gang)
        try:
            version = await self._prevent_success(gang, stored)
        except NotFound:
            return self.gone()
        propagation = PropagationPolicy.FOREGROUND if self.foreground else propagation_of(read_job(version))
        try:
            await self.requests.delete_version(JOBS, version["metadata"], propagation)
        except NotFound:
            return self.gone()
        except ClusterError as error:
            self.may_be_deleted = self.may_be_deleted or error.may_have_applied
            raise
        return Deletion(deleted=gang)

    async def _prevent_success(self, gang: StoredGang, stored: Object) -> Object:
        """Make the changes on which the deletion depends, and return the version to delete."""
        live = [one for one in gang.jobs[1:] if not end_condition(one)]
        if self._cannot_succeed or not live or not (gang.has_job_set or end_condition(gang.jobs[0])):
            return stored
        metadata = stored["metadata"]
        mark = mark_patch(BY_DELETION)
        mark["metadata"]["resourceVersion"] = metadata["resourceVersion"]
        marked = await self.requests.patch_job(metadata["name"], mark)
        version = version_of(live[0].metadata)
        with suppress(NotFound):  # somebody else has deleted the Job, so the gang cannot succeed either
            if gang.has_job_set:
                # The Job cannot be complete after this patch: its controller compares the version, too.
                await patch_version(self.requests.client, JOBS, version, end_patch())
            else:
                await self.requests.delete_version(JOBS, version, PropagationPolicy.FOREGROUND)
        self._cannot_succeed = True
        return marked


async def delete(client: Client, ref: GangRef, *, deleted_by: str = "") -> bool:
    """Delete the Job of exactly this uid, and release its pods. Returns false if the Job was gone."""
    deletion = await delete_job(client, ref, deleted_by=deleted_by)
    await release_deleted(client, ref, deletion, release_held=True)
    return deletion.deleted is not None


async def delete_job(client: Client, ref: GangRef, *, deleted_by: str = "") -> Deletion:
    """Delete the Job as `delete` does, without the release of the pods.

    :param deleted_by: Who deletes the gang on purpose. The Job says so before it is deleted, because whoever follows
        the gang sees only the last state of the Job.
    """
    requests = RetryingRequests(client, ref.namespace)
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
    client: Client,
    ref: GangRef,
    claim_id: str,
    *,
    release_held: bool = False,
    delete: bool = False,
    version: str = "",
) -> bool:
    """Mark the gang as delivered, release its held pods, and delete its Job, if `claim_id` is responsible for the gang.

    A Job that can be deleted at once is not marked before: nobody reads the mark of a Job that is gone. After any other
    answer to the DELETE, the Job is marked, so that the next try or a sweep does not take it for undelivered.

    Returns false if the gang was left alone. The pods of a gang whose Job is gone are released, too.

    :param version: The resourceVersion in which the Job had ended and `claim_id` was responsible; empty if unknown.
    """
    if delete and version and not release_held and await _is_deleted_in(client, ref, version):
        return True
    marked = await mark_delivered_by(client, ref, claim_id, at=datetime.now(UTC))
    if marked is None and not await is_gone(client, ref):
        return False
    if release_held:
        await release_pods(client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)
    if not delete or marked is None:
        return True
    requests = RetryingRequests(client, ref.namespace)
    return (await delete_job_if(requests, ref, lambda job: job.holds_claim(claim_id), seen=marked)).kept is None


async def _is_deleted_in(client: Client, ref: GangRef, version: str) -> bool:
    """Send one DELETE for an ended Job in this version. Return false if it was refused, or if its answer was lost."""
    try:
        await client.delete(JOBS, ref.name, ref.namespace, uid=ref.uid, resource_version=version)
    except ClusterError:
        return False
    return True


async def release_deleted(client: Client, ref: GangRef, deletion: Deletion, *, release_held: bool = False) -> None:
    """Release the pods of a gang whose Job was deleted, or was gone.

    :param release_held: Also release the pods of a gang that had ended.
    """
    job = deletion.deleted
    if job is None:
        await drain_pods(client, ref, may_get_pods=False)
    elif not job.never_ran and (release_held or not job.is_ended):
        await drain_pods(client, ref, may_get_pods=may_get_pods(job), roles=job.role_names)


def may_get_pods(job: StoredGang) -> bool:
    """Return whether the Job controller may be about to create pods of a Job that was deleted in this version. Pure.

    The Jobs of the other roles of a gang are started before the main Job.
    """
    return not job.is_ended and (not job.is_suspended or job.has_roles)
