"""The claim: the annotation that names the task instance that is responsible for a gang.

A kill reads the claim first, so a kill by a former owner does nothing. A task instance that adopts a gang takes the
claim with a patch that carries the resourceVersion of the Job that it has read. So of two task instances that adopt
the same gang, the second has read what the first has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.errors import Invalid, NotFound
from airflow_provider_gangjobs.gang.labels import (
    ANNOTATION_CLAIM,
    ANNOTATION_DELIVERED,
    ANNOTATION_WAIT_UNTIL,
    LABEL_INSTALLATION,
)
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.jobs.read import get_record
from airflow_provider_gangjobs.submission.requests import RetryingRequests

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.api import Api
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.spec import Policies
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.kube.objects import Object


def claim_patch(job: Object, claim_id: str, *, installation: str = "", policies: Policies | None = None) -> Object:
    """Return the merge patch that gives the Job to `claim_id`, if the Job has not changed since it was read.

    :param installation: Id of the Airflow installation of the new owner.
    :param policies: Policies of the new owner. By default those of the Job stay.
    """
    # A process that resumes a task does not claim, and would pay for the import.
    from airflow_provider_gangjobs.gang.render.job import policy_annotations

    metadata = job["metadata"]
    annotations: Object = {ANNOTATION_CLAIM: claim_id}
    if policies:
        annotations |= {ANNOTATION_WAIT_UNTIL: None, **policy_annotations(policies)}
    if read_job(job).is_delivered:  # the gang was handed over, and has an owner again
        annotations[ANNOTATION_DELIVERED] = None
    patch = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "annotations": annotations}
    return {"metadata": patch | ({"labels": {LABEL_INSTALLATION: installation}} if installation else {})}


async def holds_claim(client: Api, ref: GangRef, claim_id: str) -> bool:
    """Return whether `claim_id` is responsible for the gang. Returns false if the Job is gone.

    Raises:
        ClusterError: this is unknown.
    """
    job = await get_record(client, ref)
    return job is not None and is_claimed_by(job, claim_id)


async def is_gone(client: Api, ref: GangRef) -> bool:
    """Return whether no Job of this uid exists.

    Raises:
        ClusterError: this is unknown.
    """
    return await get_record(client, ref) is None


async def mark_delivered(client: Api, ref: GangRef, *, at: datetime, clock: Clock | None = None) -> bool:
    """Mark the outcome as delivered, so that the next submission is a new attempt. Returns false if the Job is gone."""
    mark = {"metadata": {"annotations": {ANNOTATION_DELIVERED: at.isoformat(timespec="seconds")}}}
    return await RetryingRequests(client, ref.namespace, clock=clock).jobs(ref).patch(mark)


async def mark_delivered_by(
    client: Api, ref: GangRef, claim_id: str, *, at: datetime, clock: Clock | None = None
) -> Object | None:
    """Mark the outcome as delivered if `claim_id` is responsible for the gang, as `patch_claimed` does."""
    mark = {annotation_path(ANNOTATION_DELIVERED): at.isoformat(timespec="seconds")}
    return await patch_claimed(client, ref, claim_id, mark, clock=clock)


async def hand_over(client: Api, ref: GangRef, claim_id: str, *, at: datetime, clock: Clock | None = None) -> bool:
    """Give up the claim of a gang that runs on after its task has succeeded, if `claim_id` holds the claim.

    Nothing that happens to the task instance ends the gang after that. If the gang has ended, the next submission of
    the task is a new attempt. Returns false if the Job is gone, or another task instance is responsible.

    Raises:
        ClusterError: it is unknown whether the claim was given up.
    """
    values = {
        annotation_path(ANNOTATION_DELIVERED): at.isoformat(timespec="seconds"),
        annotation_path(ANNOTATION_CLAIM): "",
    }
    return await patch_claimed(client, ref, claim_id, values, clock=clock) is not None


async def patch_claimed(
    client: Api, ref: GangRef, claim_id: str, values: Mapping[str, Any], *, clock: Clock | None = None
) -> Object | None:
    """Set values of the Job if `claim_id` is responsible for the gang when the server applies the patch.

    Safe to repeat. Returns the Job as the server stored it, or None if the Job is gone or another task instance is
    responsible.

    :param values: The new values by JSON pointer.

    Raises:
        ClusterError: it is unknown whether the values are set.
    """
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    expected = {"/metadata/uid": ref.uid, annotation_path(ANNOTATION_CLAIM): claim_id}
    try:
        return await requests.retry(lambda: requests.patch_job_if(ref.name, expected, values))
    except NotFound:
        return None
    except Invalid:
        # The server sends the same answer for a failed comparison and for a patch that is invalid for another reason.
        if await holds_claim(client, ref, claim_id):
            raise
        return None


def is_claimed_by(job: Job, claim_id: str) -> bool:
    """Return whether `claim_id` is responsible for the gang of this Job. An empty claim is responsible for nothing."""
    return bool(claim_id) and job.holds_claim(claim_id)


def annotation_path(name: str) -> str:
    """Return the JSON pointer of an annotation."""
    return "/metadata/annotations/" + name.replace("~", "~0").replace("/", "~1")
