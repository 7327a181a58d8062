"""Delete a gang, ended or not: after its delivery, by its policy, or on purpose. Then its pods are released.

A Job is deleted in exactly the version that a rule was judged for: the DELETE carries the uid and the resourceVersion
of that version as preconditions. After a conflict, and after an answer that was lost, the Job is read and judged again
before the next DELETE. So a gang that another try adopts, or that ends, between the judgement and the DELETE is kept.

A live gang is deleted in the foreground, so its Job stays until its pods are released, and whoever deletes it may die.
Every function is repeatable.

One try of a task ends its live gangs, which are those whose claim it holds. A gang that has ended, or that another try
has adopted, is left alone: another try may want its outcome, or the gang.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.cluster.client import PropagationPolicy, patch_version, version_of
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.ending.release import drain_pods
from airflow_provider_gangjobs.ending.stop import stop
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.exceptions.base import DELETION
from airflow_provider_gangjobs.gang.identity import task_selector
from airflow_provider_gangjobs.gang.record import FOREIGN_REMEDY
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, is_live, state_of
from airflow_provider_gangjobs.gang.state.stopped import BY_DELETION, end_patch, mark_patch
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, before_deletion, read_job
from airflow_provider_gangjobs.jobs.requests import RetryingRequests
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.views import end_condition
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELETED_BY

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.kube.views import Object


class Deletion(Struct, frozen=True):
    """The result of a deletion. A Job that was gone is neither kept nor deleted."""

    deleted: StoredGang | None = None
    """The gang as it was last judged, if its Job is deleted."""
    kept: StoredGang | None = None
    """The gang as it was last judged, if its Job was kept."""


async def delete(
    requests: RetryingRequests,
    ref: GangRef,
    *,
    only_if: Callable[[StoredGang], bool] = lambda _: True,
    seen: Object | None = None,
    foreground: bool = False,
    deleted_by: str = "",
) -> Deletion:
    """Delete the Job of a gang, and all that the Job owns, if `only_if` holds for the version that the server deletes.

    The Jobs of the other roles are judged, too. A Job whose record cannot be read is kept. The pods are not released,
    see `finish_deletion`.

    :param seen: The Job as it was just read, which saves the first read.
    :param foreground: Delete in the foreground in any case, see `_propagation_of`.
    :param deleted_by: Who deletes the gang on purpose. A Job that may be deleted says so before the DELETE, because
        whoever follows the gang sees only the last state of the Job.

    Raises:
        Conflict: others changed the Job before each try.
        ClusterError: it is unknown whether the Job is deleted.
    """
    deletion = _GangDeletion(requests, only_if, foreground, deleted_by)

    async def judge_and_delete() -> Deletion:
        nonlocal seen
        stored, seen = seen or await requests.find(JOBS, ref.name), None
        if stored is None or stored["metadata"]["uid"] != ref.uid:
            return deletion.gone()
        return await deletion.try_once(stored)

    return await requests.retry(judge_and_delete, after_conflict=True)


async def finish_deletion(client: Client, ref: GangRef, deletion: Deletion, *, release_held: bool = False) -> None:
    """Release the pods of a gang whose Job was deleted, or was gone. Nothing is done if the Job was kept.

    :param release_held: Also release the pods of a gang that had ended.
    """
    gang = deletion.deleted
    if deletion.kept is not None or (gang is not None and (gang.never_ran or (gang.is_ended and not release_held))):
        return
    await drain_pods(client, ref, gang)


def _propagation_of(job: StoredGang) -> PropagationPolicy:
    """Return how a Job is deleted: in the foreground if its pods may still exist.

    In the foreground, the API server keeps the Job until its pods are gone, and pods that the harvest finalizer holds
    are not gone. So whoever releases the pods of a deleted gang can die at any time: the Job stays, and shows the next
    process that pods are to be released, that the number of the attempt is used, and that ranks may still run.
    """
    return "Background" if job.is_ended or job.never_ran else "Foreground"


class _GangDeletion(Struct, eq=False):
    """Judges a gang by all its Jobs, and makes sure that a gang that was judged as live cannot succeed any more.

    The precondition of a deletion concerns one Job. If the main Job has ended or has no pods, the gang succeeds when
    the last of the other Jobs is complete, which does not change the main Job. So the main Job is marked as stopped,
    which keeps other tries from adopting the gang, and then a Job that has not ended is deleted in the version that
    was judged. If that Job is complete by then, the gang has succeeded, and the mark has no effect. A Job of a
    JobSet is made to fail instead, because the JobSet controller creates a deleted Job again.
    """

    requests: RetryingRequests
    only_if: Callable[[StoredGang], bool]
    foreground: bool
    deleted_by: str
    gang: StoredGang | None = None
    """The gang as it was last judged."""
    may_be_deleted: bool = False
    """Whether the answer to a DELETE was lost."""
    _cannot_succeed: bool = False

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
            if gang.problem or not self.only_if(gang):
                is_deleted = self.may_be_deleted and "deletionTimestamp" in stored["metadata"]
                return Deletion(deleted=gang) if is_deleted else Deletion(kept=gang)
        try:
            version = await self._prevent_success(gang, await self._say_who_deletes(stored))
        except NotFound:
            return self.gone()
        propagation = "Foreground" if self.foreground else _propagation_of(read_job(version))
        try:
            await self.requests.delete_version(JOBS, version["metadata"], propagation)
        except NotFound:
            return self.gone()
        except ClusterError as error:
            self.may_be_deleted = self.may_be_deleted or error.may_have_applied
            raise
        return Deletion(deleted=gang)

    async def _say_who_deletes(self, stored: Object) -> Object:
        """Write who deletes the gang on the version that was judged. Return the version with this mark."""
        mark = {ANNOTATION_DELETED_BY: self.deleted_by}
        if not self.deleted_by or mark.items() <= stored["metadata"].get("annotations", {}).items():
            return stored
        body = {"metadata": {"annotations": mark}}
        return await patch_version(self.requests.client, JOBS, stored["metadata"], body)

    async def _prevent_success(self, gang: StoredGang, stored: Object) -> Object:
        """Make the changes on which the deletion depends, and return the version to delete."""
        live = [one for one in gang.jobs[1:] if not end_condition(one)]
        if self._cannot_succeed or not live or not (gang.record.has_job_set or end_condition(gang.jobs[0])):
            return stored
        marked = await patch_version(self.requests.client, JOBS, stored["metadata"], mark_patch(BY_DELETION))
        version = version_of(live[0].metadata)
        with suppress(NotFound):  # somebody else has deleted the Job, so the gang cannot succeed either
            if gang.record.has_job_set:
                # The Job cannot be complete after this patch: its controller compares the version, too.
                await patch_version(self.requests.client, JOBS, version, end_patch())
            else:
                await self.requests.delete_version(JOBS, version, "Foreground")
        self._cannot_succeed = True
        return marked


def foreign_error(gang: StoredGang, step: str) -> SubmissionFailed:
    """Return the error for a Job that is not ended, because its record cannot be read."""
    where = str(gang.ref)
    return SubmissionFailed(where, step, gang.problem, transient=False, advice=FOREIGN_REMEDY, operation=DELETION)


# -- the live gangs of one try of a task -----------------------------------------------------------------------------


def is_live_gang_of(claim_id: str) -> Callable[[StoredGang], bool]:
    """Return the rule for the ends of a task: the gang is live, and `claim_id` is responsible for it.

    A Job that is being deleted counts as live, so that whoever repeats its deletion releases its pods.
    """

    def is_own(gang: StoredGang) -> bool:
        return gang.holds_claim(claim_id) and state_of(gang) in {SubmissionState.IN_PROGRESS, SubmissionState.DELETING}

    return is_own


async def end_live_gangs(
    client: Client,
    key: TaskKey,
    claim_id: str,
    *,
    namespace: str,
    stopped: Stopped | None,
    on_ended: Callable[[GangRef], None],
) -> None:
    """Delete or stop the task's live gangs that `claim_id` is responsible for, and release their pods.

    :param stopped: The reason with which the gangs are stopped; `None` to delete them.
    :param on_ended: Called with each gang that is deleted or stopped, before its pods are released.
    """
    requests, is_own = RetryingRequests(client, namespace), is_live_gang_of(claim_id)
    ended: list[StoredGang] = []
    for stored, gang in await _live_gangs(requests, key, claim_id):
        if stopped is None:
            has_ended = (await delete(requests, gang.ref, only_if=is_own, seen=stored)).deleted is not None
        else:
            has_ended = await stop(requests, gang.ref, stopped, only_if=is_own, seen=gang)
        if has_ended:
            ended.append(gang)
    for gang in ended:
        on_ended(gang.ref)
    await asyncio.gather(*(drain_pods(client, gang.ref, gang) for gang in ended))


async def live_gangs(client: Client, key: TaskKey, claim_id: str, *, namespace: str) -> list[StoredGang]:
    """Return the task's live gangs that `claim_id` is responsible for."""
    return [gang for _, gang in await _live_gangs(RetryingRequests(client, namespace), key, claim_id)]


async def _live_gangs(requests: RetryingRequests, key: TaskKey, claim_id: str) -> list[tuple[Object, StoredGang]]:
    found = await requests.list(JOBS, task_selector(key.digest))
    gangs = [(stored, await requests.read_gang(stored)) for stored in found]
    return [(stored, gang) for stored, gang in gangs if is_live(gang) and gang.holds_claim(claim_id)]
