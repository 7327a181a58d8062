"""Delete an object in exactly the version that a rule was judged for, and judge again if the object has changed.

The DELETE carries the uid and the resourceVersion of the judged object as preconditions. After a conflict, and after an
answer that was lost, the object is read and judged again before the next DELETE. So a gang that another try adopts, or
that ends, between the judgement and the DELETE is kept.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import PropagationPolicy, version_of
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.halt import DELETION_MARK, end_patch, without_deletion_mark
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.jobs.retrying_requests import TRIES_MAX
from airflow_provider_gangjobs.kube.views import end_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.jobs.retrying_requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import Object


class Deletion(Struct, frozen=True):
    """The result of a conditional deletion."""

    deleted: bool
    kept: Object | None = None
    """The object as it was last judged, if it was kept. None if the object is deleted or was gone."""
    version: Object | None = None
    """The version that was deleted. None if the object was kept or was gone."""
    job: StoredGang | None = None
    """The gang whose Job was kept or deleted, with the state of all its Jobs. None if the object is no Job."""


async def delete_if(
    requests: RetryingRequests, resource: Resource, seen: Object, judge: Callable[[Object], bool]
) -> Deletion:
    """Delete an object that is no Job, if `judge` holds for the version that the server deletes.

    :param seen: The object as it was just read.

    Raises:
        Conflict: others changed the object before each of `TRIES_MAX` deletions.
        ClusterError: it is unknown whether the object is deleted.
    """
    metadata = seen["metadata"]
    ref = GangRef(requests.namespace, metadata["name"], metadata["uid"])
    return await _delete_by(_ObjectRule(judge), requests, resource, ref, seen)


async def delete_job_if(
    requests: RetryingRequests,
    ref: GangRef,
    judge: Callable[[StoredGang], bool],
    *,
    seen: Object | None = None,
    foreground: bool = False,
) -> Deletion:
    """Delete the Job of a gang, and so all that the Job owns, if `judge` holds for the version that the server deletes.

    The Jobs of the other roles are judged, too, see `_GangRule`.

    :param seen: The Job as it was just read, which saves the first read.
    :param foreground: Delete in the foreground in any case, see `propagation_of`.

    Raises:
        Conflict: others changed the Job before each of `TRIES_MAX` deletions.
        ClusterError: it is unknown whether the Job is deleted.
    """
    rule = _GangRule(requests, judge, foreground=foreground)
    deletion = await _delete_by(rule, requests, JOBS, ref, seen)
    is_known = deletion.kept is not None or deletion.version is not None
    return replace(deletion, job=rule.gang) if is_known else deletion


def propagation_of(job: StoredGang) -> PropagationPolicy:
    """Return how a Job is deleted: in the foreground if its pods may still exist.

    In the foreground, the API server keeps the Job until its pods are gone, and pods that the harvest finalizer holds
    are not gone. So whoever releases the pods of a deleted gang can die at any time: the Job stays, and shows the next
    process that pods are to be released, that the number of the attempt is used, and that ranks may still run.
    """
    return PropagationPolicy.BACKGROUND if job.is_ended or job.never_ran else PropagationPolicy.FOREGROUND


class _Rule(Protocol):
    """When an object is deleted, and how."""

    async def holds_for(self, stored: Object) -> bool: ...

    async def prepare(self, stored: Object) -> Object:
        """Make the changes on which the deletion depends, and return the version to delete.

        Raises:
            Conflict: what was judged has changed.
        """

    def propagation(self, version: Object) -> PropagationPolicy: ...


class _ObjectRule:
    def __init__(self, judge: Callable[[Object], bool]) -> None:
        self._judge = judge

    async def holds_for(self, stored: Object) -> bool:
        return self._judge(stored)

    async def prepare(self, stored: Object) -> Object:
        return stored

    def propagation(self, version: Object) -> PropagationPolicy:
        return PropagationPolicy.BACKGROUND


class _GangRule:
    """Judges a gang by all its Jobs, and makes sure that a gang that was judged as live cannot succeed any more.

    The precondition of a deletion concerns one Job. If the main Job has ended or has no pods, the gang succeeds when
    the last of the other Jobs is complete, which does not change the main Job. So the main Job is marked as halted,
    which keeps other tries from adopting the gang, and then a Job that has not ended is deleted in the version that
    was judged. If that Job is complete by then, the gang has succeeded, and the mark has no effect. A Job of a
    JobSet is made to fail instead, because the JobSet controller creates a deleted Job again.
    """

    def __init__(self, requests: RetryingRequests, judge: Callable[[StoredGang], bool], *, foreground: bool) -> None:
        self.gang: StoredGang | None = None
        """The gang as it was last judged."""
        self._requests = requests
        self._judge = judge
        self._foreground = foreground
        self._cannot_succeed = False

    async def holds_for(self, stored: Object) -> bool:
        if self._cannot_succeed:
            return True
        self.gang = without_deletion_mark(await self._requests.read_gang(stored))
        return self._judge(self.gang)

    async def prepare(self, stored: Object) -> Object:
        gang = self.gang
        if self._cannot_succeed or gang is None:
            return stored
        live = [one for one in gang.jobs[1:] if not end_condition(one)]
        if not live or not (gang.has_job_set or end_condition(gang.jobs[0])):
            return stored
        metadata = stored["metadata"]
        mark = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": DELETION_MARK}}
        marked = await self._requests.patch_job(metadata["name"], mark)
        version = version_of(live[0].metadata)
        with suppress(NotFound):  # somebody else has deleted the Job, so the gang cannot succeed either
            if gang.has_job_set:
                # The Job cannot be complete after this patch: its controller compares the version, too.
                await self._requests.patch_version(JOBS, version, end_patch())
            else:
                await self._requests.delete_version(JOBS, version, PropagationPolicy.FOREGROUND)
        self._cannot_succeed = True
        return marked

    def propagation(self, version: Object) -> PropagationPolicy:
        return PropagationPolicy.FOREGROUND if self._foreground else propagation_of(read_job(version))


async def _delete_by(
    rule: _Rule, requests: RetryingRequests, resource: Resource, ref: GangRef, seen: Object | None
) -> Deletion:
    """Delete the object of this name and uid in the version for which the rule holds."""
    backoff = requests.backoff()
    may_be_deleted: Object | None = None
    for tries_left in reversed(range(TRIES_MAX)):
        is_prepared = False
        try:
            stored = seen or await requests.find(resource, ref.name)
            seen = None
            if stored is None or stored["metadata"]["uid"] != ref.uid:
                return Deletion(deleted=may_be_deleted is not None, version=may_be_deleted)
            if not await rule.holds_for(stored):
                is_deleted = may_be_deleted is not None and "deletionTimestamp" in stored["metadata"]
                return Deletion(deleted=is_deleted, kept=stored, version=may_be_deleted if is_deleted else None)
            version = await rule.prepare(stored)
            is_prepared = True
            await requests.delete_version(resource, version["metadata"], rule.propagation(version))
        except NotFound:
            return Deletion(deleted=may_be_deleted is not None, version=may_be_deleted)
        except ClusterError as error:
            if not tries_left or not (isinstance(error, Conflict) or error.transient or error.may_have_applied):
                raise
            may_be_deleted = may_be_deleted or (stored if is_prepared and error.may_have_applied else None)
            if not await requests.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                raise
        else:
            return Deletion(deleted=True, version=stored)
    raise AssertionError("the last try returns or raises")


__all__ = ["Deletion", "delete_if", "delete_job_if", "propagation_of"]
