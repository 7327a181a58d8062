"""The claim: the annotation that names the task instance that is responsible for a gang.

A kill reads the claim first, so a kill by a former owner does nothing. A task instance that adopts a gang takes the
claim with a patch that carries the resourceVersion of the Job that it has read. So of two task instances that adopt
the same gang, the second has read what the first has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.marks import StoredClaim, to_text
from airflow_provider_gangjobs.gang.state.gang_jobs import jobs_to_end
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, build_gang, read_job
from airflow_provider_gangjobs.jobs.requests import RestartSubmission
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM, ANNOTATION_DELIVERED, LABEL_INSTALLATION

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import Claim
    from airflow_provider_gangjobs.gang.render.placement import TimeLimit
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests
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
    from airflow_provider_gangjobs.gang.render.placement import limit_on_adoption

    job, name = read_job(stored), stored["metadata"]["name"]
    is_claimed = job.holds_claim(claim.id)
    if is_claimed and not job.record.roles:
        return stored
    try:
        gang = await requests.read_gang(stored)
        if is_claimed:  # the process that has taken the claim may not have learned it, or may have stopped after it
            await _extend_time_limits(
                requests, gang, gang.view.spec.active_deadline_seconds if gang.claim.time_limit else None
            )
            return stored
        limit_s, source = limit_on_adoption(gang, limit)
        patch = claim_patch(stored, claim, installation=installation, time_limit=source)
        if limit_s != gang.view.spec.active_deadline_seconds and not gang.record.has_job_set:
            patch["spec"] = {"activeDeadlineSeconds": limit_s}
        claimed = await requests.client.patch(JOBS, name, requests.namespace, patch)
        if gang.record.roles:
            await _extend_time_limits(requests, gang, limit_s)
        return claimed
    except ClusterError as error:
        if isinstance(error, (Conflict, NotFound)) or error.transient or error.may_have_applied:
            raise RestartSubmission(f"Job {name} changed while it was adopted: {error}") from error
        raise


async def _extend_time_limits(requests: RetryingRequests, gang: StoredGang, limit_s: int | None) -> None:
    """Give the Jobs of a gang other than the main Job this time limit, if theirs is shorter. Safe to repeat.

    :param gang: The gang as it was before it was adopted.
    :param limit_s: The time limit in seconds; `None` for no time limit.
    """
    for one in jobs_to_end(gang):
        own_s = one.spec.active_deadline_seconds
        if one.metadata.uid != gang.ref.uid and own_s is not None and (limit_s is None or own_s < limit_s):
            await requests.patch_job(build_gang(one).ref, {"spec": {"activeDeadlineSeconds": limit_s}})


def claim_patch(job: Object, claim: Claim, *, installation: str = "", time_limit: str | None = None) -> Object:
    """Return the merge patch that gives the Job to `claim`, if the Job has not changed since it was read.

    Policies and `max_tries` that the claim does not have stay as they are.

    :param installation: Id of the Airflow installation of the new owner.
    :param time_limit: The source of the time limit; `None` to leave it as it is.
    """
    metadata, gang = job["metadata"], read_job(job)
    before = gang.claim
    taken = StoredClaim(
        id=claim.id,
        max_tries=before.max_tries if claim.max_tries is None else claim.max_tries,
        policies=claim.policies or before.policies,
        time_limit=before.time_limit if time_limit is None else time_limit,
    )
    annotations: Object = {ANNOTATION_CLAIM: to_text(taken)}
    if gang.is_delivered:  # the gang was handed over, and has an owner again
        annotations[ANNOTATION_DELIVERED] = None
    patch = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "annotations": annotations}
    return {"metadata": patch | ({"labels": {LABEL_INSTALLATION: installation}} if installation else {})}
