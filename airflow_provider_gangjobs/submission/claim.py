"""The claim: which task instance answers for a gang now.

A kill by a former owner does nothing, because it looks here first. Whoever adopts a gang takes the
claim with the resourceVersion it has seen, so that of two adopters the last one knows all of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import PatchType
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import Conflict, Invalid, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.labels import ANNOTATION_CLAIM, ANNOTATION_DELIVERED
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.submission.requests import TRIES_MAX, Api, Object, RetryingRequests

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job


def claim_patch(job: Object, claim_id: str) -> Object:
    """The merge patch by which `claim_id` takes a Job as it was last seen."""
    metadata = job["metadata"]
    return {
        "metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {ANNOTATION_CLAIM: claim_id},
        }
    }


async def claim(client: Api, ref: GangRef, claim_id: str, *, clock: Clock | None = None) -> bool:
    """Take the gang. False if its Job is gone; safe to repeat.

    Raises:
        Conflict: others keep changing the Job, `TRIES_MAX` times in a row.
        ClusterError: it is not known whether the claim was taken.
    """
    backoff = RetryingRequests(client, ref.namespace, clock=clock).backoff()
    for tries_left in reversed(range(TRIES_MAX)):
        job = await _stored(client, ref)
        if job is None:
            return False
        if read_job(job).holds_claim(claim_id):
            return True
        try:
            await client.patch(JOBS, ref.name, ref.namespace, claim_patch(job, claim_id), patch_type=PatchType.MERGE)
        except NotFound:
            return False
        except Conflict:
            if not tries_left:
                raise
            await (clock or Clock()).sleep(backoff.next())
        else:
            return True
    raise AssertionError("the last try returns or raises")


async def holds_claim(client: Api, ref: GangRef, claim_id: str) -> bool:
    """Whether `claim_id` still answers for the gang. False if its Job is gone.

    Raises:
        ClusterError: that is not known.
    """
    job = await _stored(client, ref)
    return job is not None and is_claimed_by(read_job(job), claim_id)


async def is_gone(client: Api, ref: GangRef) -> bool:
    """Whether there is no Job of this uid (any more).

    Raises:
        ClusterError: that is not known.
    """
    return await _stored(client, ref) is None


async def mark_delivered(client: Api, ref: GangRef, *, at: datetime, clock: Clock | None = None) -> bool:
    """Note that the outcome was handed over, so that the next submission is a new attempt. False if the Job is gone."""
    mark = {"metadata": {"annotations": {ANNOTATION_DELIVERED: at.isoformat(timespec="seconds")}}}
    return await RetryingRequests(client, ref.namespace, clock=clock).mark_job(ref, mark)


async def mark_delivered_by(
    client: Api, ref: GangRef, claim_id: str, *, at: datetime, clock: Clock | None = None
) -> Object | None:
    """As `mark_delivered`, by the rule of `patch_claimed`."""
    mark = {annotation_path(ANNOTATION_DELIVERED): at.isoformat(timespec="seconds")}
    return await patch_claimed(client, ref, claim_id, mark, clock=clock)


async def patch_claimed(
    client: Api, ref: GangRef, claim_id: str, values: Mapping[str, Any], *, clock: Clock | None = None
) -> Object | None:
    """Set `values`, by JSON pointer, if `claim_id` answers for the gang when the server applies them. Safe to repeat.

    Returns the Job as the server stored it, or None if the Job is gone or another task instance answers for it.

    Raises:
        ClusterError: it is not known whether the values are set.
    """
    requests = RetryingRequests(client, ref.namespace, clock=clock)
    expected = {"/metadata/uid": ref.uid, annotation_path(ANNOTATION_CLAIM): claim_id}
    try:
        return await requests.retry(lambda: requests.patch_job_if(ref.name, expected, values))
    except NotFound:
        return None
    except Invalid:
        # The server answers a comparison that fails as it answers a patch that is invalid for another reason.
        if await holds_claim(client, ref, claim_id):
            raise
        return None


def is_claimed_by(job: Job, claim_id: str) -> bool:
    """Whether `claim_id` answers for the gang of this Job. Nobody answers by an empty claim."""
    return bool(claim_id) and job.holds_claim(claim_id)


def annotation_path(name: str) -> str:
    """The JSON pointer of an annotation."""
    return "/metadata/annotations/" + name.replace("~", "~0").replace("/", "~1")


async def _stored(client: Api, ref: GangRef) -> Object | None:
    try:
        job = await client.get(JOBS, ref.name, ref.namespace)
    except NotFound:
        return None
    return job if job["metadata"]["uid"] == ref.uid else None
