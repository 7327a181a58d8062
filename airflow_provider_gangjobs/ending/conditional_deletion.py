"""Delete an object in exactly the version that a rule was judged for, and read it again if it has changed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import PropagationPolicy
from airflow_provider_gangjobs.cluster.client_protocol import version_of
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.state.halt import REMOVAL_MARK, end_patch, without_removal_mark
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.jobs.retrying_requests import TRIES_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.jobs.retrying_requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import Object


class Removal(Struct, frozen=True):
    """The result of a conditional deletion."""

    deleted: bool
    kept: Object | None = None
    """The object as it was last judged, if it was kept. None if the object is deleted or was gone."""
    removed: Object | None = None
    """The version that was deleted. None if the object was kept or was gone."""
    job: Job | None = None
    """The gang whose Job was kept or deleted, with the state of all its Jobs. None if the object is no Job."""


async def remove_if(
    requests: RetryingRequests,
    resource: Resource,
    name: str,
    uid: str,
    judge: Callable[[Object], bool],
    *,
    seen: Object | None = None,
) -> Removal:
    """Delete the object of this uid in exactly the version for which `judge` holds.

    The DELETE carries the uid and the resourceVersion of the judged object as preconditions. After a conflict, and
    after an answer that was lost, the object is read and judged again before the next DELETE. A Job whose pods may
    still exist is deleted in the foreground, see `propagation_of`.

    :param seen: The object as it was just read, which saves the first read.

    Raises:
        Conflict: others changed the object before each of `TRIES_MAX` deletions.
        ClusterError: it is unknown whether the object is deleted.
    """

    async def judge_object(stored: Object) -> bool:
        return judge(stored)

    return await _remove_if(requests, resource, name, uid, judge_object, seen=seen)


async def _remove_if(
    requests: RetryingRequests,
    resource: Resource,
    name: str,
    uid: str,
    judge: Callable[[Object], Awaitable[bool]],
    *,
    prepare: Callable[[Object], Awaitable[Object]] | None = None,
    seen: Object | None = None,
    foreground: bool = False,
) -> Removal:
    """Delete the object in the version for which `judge` holds.

    :param prepare: Makes changes on which the deletion depends, and returns the version to delete. Raises Conflict
        if what was judged has changed.
    """
    backoff = requests.backoff()
    may_be_deleted: Object | None = None
    for tries_left in reversed(range(TRIES_MAX)):
        stored = seen or await requests.retry(lambda: requests.find(resource, name))
        seen = None
        if stored is None or stored["metadata"]["uid"] != uid:
            return Removal(deleted=may_be_deleted is not None, removed=may_be_deleted)
        if not await judge(stored):
            is_deleted = may_be_deleted is not None and "deletionTimestamp" in stored["metadata"]
            return Removal(deleted=is_deleted, kept=stored, removed=may_be_deleted if is_deleted else None)
        is_prepared = prepare is None
        try:
            version = await prepare(stored) if prepare is not None else stored
            is_prepared = True
            policy = PropagationPolicy.FOREGROUND if foreground else propagation_of(resource, version)
            await requests.delete_version(resource, version["metadata"], policy)
        except NotFound:
            return Removal(deleted=may_be_deleted is not None, removed=may_be_deleted)
        except ClusterError as error:
            if not tries_left or not (isinstance(error, Conflict) or error.transient or error.may_have_applied):
                raise
            may_be_deleted = may_be_deleted or (stored if is_prepared and error.may_have_applied else None)
            if not await requests.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                raise
        else:
            return Removal(deleted=True, removed=stored)
    raise AssertionError("the last try returns or raises")


async def remove_job_if(
    requests: RetryingRequests,
    ref: GangRef,
    judge: Callable[[Job], bool],
    *,
    seen: Object | None = None,
    foreground: bool = False,
) -> Removal:
    """Delete the Job of this uid in exactly the version for which `judge` holds, as `remove_if` does.

    The Jobs of the other roles of a gang are judged, too, see `_prevent_success`.

    :param foreground: Delete in the foreground in any case.
    """
    judged: list[Job] = []
    is_decided = False

    async def judge_gang(stored: Object) -> bool:
        if not is_decided:
            judged.append(without_removal_mark(await requests.read_gang(stored)))
        return is_decided or judge(judged[-1])

    async def prepare(stored: Object) -> Object:
        nonlocal is_decided
        version = stored if is_decided else await _prevent_success(requests, stored, judged[-1])
        is_decided = is_decided or version is not stored
        return version

    removal = await _remove_if(
        requests, JOBS, ref.name, ref.uid, judge_gang, prepare=prepare, seen=seen, foreground=foreground
    )
    is_known = removal.kept is not None or removal.removed is not None
    return replace(removal, job=judged[-1]) if is_known and judged else removal


async def _prevent_success(requests: RetryingRequests, main_job: Object, gang: Job) -> Object:
    """Make sure that a gang that was judged as live cannot succeed any more, and return its main Job.

    The precondition of a deletion concerns one Job. If the main Job has ended or has no pods, the gang succeeds when
    the last of the other Jobs is complete, which does not change the main Job. So the main Job is marked as halted,
    which keeps other tries from adopting the gang, and then a Job that has not ended is deleted in the version that
    was judged. If that Job is complete by then, the gang has succeeded, and the mark has no effect. A Job of a
    JobSet is made to fail instead, because the JobSet controller creates a deleted Job again.

    Raises:
        Conflict: the main Job or the Job has changed.
    """
    live = [one for one in gang.jobs[1:] if not Job(one).has_end_condition]
    if not live or not (gang.has_job_set or Job(gang.jobs[0]).has_end_condition):
        return main_job
    metadata = main_job["metadata"]
    mark = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": REMOVAL_MARK}}
    marked = await requests.patch_job(metadata["name"], mark)
    version = version_of(live[0].metadata)
    with suppress(NotFound):  # somebody else has deleted the Job, so the gang cannot succeed either
        if gang.has_job_set:
            # The Job cannot be complete after this patch: its controller compares the version, too.
            await requests.patch_version(JOBS, version, end_patch())
        else:
            await requests.delete_version(JOBS, version, PropagationPolicy.FOREGROUND)
    return marked


def propagation_of(resource: Resource, stored: Object) -> PropagationPolicy:
    """Return how an object is deleted: in the foreground if it is a Job whose pods may still exist.

    In the foreground, the API server keeps the Job until its pods are gone, and pods that the harvest finalizer holds
    are not gone. So whoever releases the pods of a deleted gang can die at any time: the Job stays, and shows the next
    process that pods are to be released, that the number of the attempt is used, and that ranks may still run.
    """
    if resource is not JOBS:
        return PropagationPolicy.BACKGROUND
    job = read_job(stored)
    return PropagationPolicy.BACKGROUND if job.is_ended or job.never_ran else PropagationPolicy.FOREGROUND


__all__ = ["Removal", "propagation_of", "remove_if", "remove_job_if"]
