"""The claim: the annotation that names the task instance that is responsible for a gang.

A kill reads the claim first, so a kill by a former owner does nothing. A task instance that adopts a gang takes the
claim with a patch that carries the resourceVersion of the Job that it has read. So of two task instances that adopt
the same gang, the second has read what the first has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid, NotFound
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.jobs.requests import (
    RestartSubmission,
    RetryingRequests,
    extend_time_limits,
    get_main_job,
)
from airflow_provider_gangjobs.kube.names import annotation_pointer
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_CLAIM,
    ANNOTATION_DELIVERED,
    ANNOTATION_MAX_TRIES,
    ANNOTATION_WAIT_UNTIL,
    LABEL_INSTALLATION,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import Claim, GangRef
    from airflow_provider_gangjobs.gang.render.placement import TimeLimit
    from airflow_provider_gangjobs.kube.views import Object


async def take_claim(
    requests: RetryingRequests,
    stored: Object,
    claim: Claim,
    *,
    installation: str,
    limit: TimeLimit | None,
) -> Object:
    """Make `claim` responsible for the gang of a Job that was just read. Return the Job as the server stored it.

    The gang also gets the policies and the time limit of its new owner.

    Raises:
        RestartSubmission: the Job has changed, or it is unknown whether the claim was taken.
        ClusterError: the server refused the request.
    """
    # A process that resumes a task does not take claims, and would pay for the import.
    from airflow_provider_gangjobs.gang.render.placement import limit_patch_on_adoption

    job, name = read_job(stored), stored["metadata"]["name"]
    is_claimed = job.holds_claim(claim.id)
    if is_claimed and not job.has_roles:
        return stored
    try:
        gang = await requests.read_gang(stored)
        if is_claimed:  # the process that has taken the claim may not have learned it, or may have stopped after it
            await extend_time_limits(requests, gang, gang.active_deadline_s if gang.time_limit is not None else None)
            return stored
        patch = claim_patch(stored, claim, installation=installation)
        limit_patch = limit_patch_on_adoption(gang, limit)
        if limit_patch:
            patch["metadata"]["annotations"] |= limit_patch["metadata"]["annotations"]
            if not gang.has_job_set:
                patch["spec"] = limit_patch["spec"]
        claimed = await requests.patch_job(name, patch)
        if gang.has_roles:
            limit_s = limit_patch["spec"]["activeDeadlineSeconds"] if limit_patch else gang.active_deadline_s
            await extend_time_limits(requests, gang, limit_s)
        return claimed
    except ClusterError as error:
        if isinstance(error, (Conflict, NotFound)) or error.transient or error.may_have_applied:
            raise RestartSubmission(f"Job {name} changed while it was adopted: {error}") from error
        raise


def claim_patch(job: Object, claim: Claim, *, installation: str = "") -> Object:
    """Return the merge patch that gives the Job to `claim`, if the Job has not changed since it was read.

    Policies and `max_tries` that the claim does not have stay as they are.

    :param installation: Id of the Airflow installation of the new owner.
    """
    # A process that resumes a task does not claim, and would pay for the import.
    from airflow_provider_gangjobs.gang.render.job_manifest import policy_annotations

    metadata = job["metadata"]
    annotations: Object = {ANNOTATION_CLAIM: claim.id}
    if claim.policies:
        annotations |= {ANNOTATION_WAIT_UNTIL: None, **policy_annotations(claim.policies)}
    if claim.max_tries is not None:
        annotations[ANNOTATION_MAX_TRIES] = str(claim.max_tries)
    if read_job(job).is_delivered:  # the gang was handed over, and has an owner again
        annotations[ANNOTATION_DELIVERED] = None
    patch = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "annotations": annotations}
    return {"metadata": patch | ({"labels": {LABEL_INSTALLATION: installation}} if installation else {})}


async def holds_claim(client: Client, ref: GangRef, claim_id: str) -> bool:
    """Return whether `claim_id` is responsible for the gang. Returns false if the Job is gone.

    Raises:
        ClusterError: this is unknown.
    """
    job = await get_main_job(client, ref)
    return job is not None and job.holds_claim(claim_id)


async def awaits_delivery(client: Client, ref: GangRef, claim_id: str) -> bool:
    """Return whether `claim_id` is responsible for the gang, whose outcome was not delivered. False if the Job is gone.

    Raises:
        ClusterError: this is unknown.
    """
    job = await get_main_job(client, ref)
    return job is not None and job.holds_claim(claim_id) and not (job.is_delivered or job.is_being_deleted)


async def is_gone(client: Client, ref: GangRef) -> bool:
    """Return whether no Job of this uid exists.

    Raises:
        ClusterError: this is unknown.
    """
    return await get_main_job(client, ref) is None


async def mark_delivered_by(client: Client, ref: GangRef, claim_id: str, *, at: datetime) -> Object | None:
    """Mark the outcome as delivered if `claim_id` is responsible for the gang, as `patch_claimed` does."""
    mark = {annotation_pointer(ANNOTATION_DELIVERED): at.isoformat(timespec="seconds")}
    return await patch_claimed(client, ref, claim_id, mark)


async def hand_over(client: Client, ref: GangRef, claim_id: str, *, at: datetime) -> bool:
    """Give up the claim of a gang that runs on after its task has succeeded, if `claim_id` holds the claim.

    Nothing that happens to the task instance ends the gang after that. If the gang has ended, the next submission of
    the task is a new attempt. Returns false if the Job is gone, or another task instance is responsible.

    Raises:
        ClusterError: it is unknown whether the claim was given up.
    """
    values = {
        annotation_pointer(ANNOTATION_DELIVERED): at.isoformat(timespec="seconds"),
        annotation_pointer(ANNOTATION_CLAIM): "",
    }
    return await patch_claimed(client, ref, claim_id, values) is not None


async def patch_claimed(client: Client, ref: GangRef, claim_id: str, values: Mapping[str, Any]) -> Object | None:
    """Set values of the Job if `claim_id` is responsible for the gang when the server applies the patch.

    Safe to repeat. Returns the Job as the server stored it, or None if the Job is gone or another task instance is
    responsible.

    :param values: The new values by JSON pointer.

    Raises:
        ClusterError: it is unknown whether the values are set.
    """
    requests = RetryingRequests(client, ref.namespace)
    expected = {"/metadata/uid": ref.uid, annotation_pointer(ANNOTATION_CLAIM): claim_id}
    try:
        return await requests.retry(lambda: requests.patch_job_if(ref.name, expected, values))
    except NotFound:
        return None
    except Invalid:
        # The server sends the same answer for a failed comparison and for a patch that is invalid for another reason.
        if await holds_claim(client, ref, claim_id):
            raise
        return None
