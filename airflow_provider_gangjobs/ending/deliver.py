"""Deliver: the outcome of a gang is in Airflow, so the gang counts as done, and its Job may be deleted.

The mark and the deletion apply only while their caller is responsible for the gang: the server compares the uid and the
claim, or the version that was judged. Every function is repeatable.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import ClusterError, Invalid, NotFound
from airflow_provider_gangjobs.ending.delete import delete
from airflow_provider_gangjobs.ending.release import release_gang
from airflow_provider_gangjobs.gang.record import StoredClaim, to_text
from airflow_provider_gangjobs.gang.spec import OnFinish
from airflow_provider_gangjobs.jobs.requests import RetryingRequests, get_main_job
from airflow_provider_gangjobs.kube.names import annotation_pointer
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM, ANNOTATION_DELIVERED

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import Object


async def awaits_delivery(client: Client, ref: GangRef, claim_id: str) -> bool:
    """Return whether `claim_id` is responsible for the gang, whose outcome was not delivered. False if the Job is gone.

    Raises:
        ClusterError: this is unknown.
    """
    job = await get_main_job(client, ref)
    return job is not None and job.holds_claim(claim_id) and not (job.is_delivered or job.is_being_deleted)


async def deliver(
    client: Client,
    ref: GangRef,
    claim_id: str,
    *,
    release_held: bool = False,
    deletes: bool = False,
    version: str = "",
) -> bool:
    """Mark the gang as delivered, release its held pods, and delete its Job, if `claim_id` is responsible for the gang.

    A Job that can be deleted at once is not marked before: nobody reads the mark of a Job that is gone. After any other
    answer to the DELETE, the Job is marked, so that the next try or a sweep does not take it for undelivered.

    Returns whether this call has delivered the gang: false if another one has, if `claim_id` is not responsible, or if
    the Job is gone. The pods of a gang whose Job is gone are released, too.

    :param version: The resourceVersion in which the Job had ended and `claim_id` was responsible; empty if unknown.
    """
    if deletes and version and not release_held and await _is_deleted_in(client, ref, version):
        return True
    marked = await mark_delivered(client, ref, claim_id)
    if marked is None and await get_main_job(client, ref) is not None:
        return False
    if release_held:
        await release_gang(client, ref)
    if not deletes or marked is None:
        return marked is not None
    requests = RetryingRequests(client, ref.namespace)
    return (await delete(requests, ref, only_if=lambda gang: gang.holds_claim(claim_id), seen=marked)).kept is None


async def _is_deleted_in(client: Client, ref: GangRef, version: str) -> bool:
    """Send one DELETE for an ended Job in this version. Return false if it was refused, or if its answer was lost."""
    try:
        await client.delete(JOBS, ref.name, ref.namespace, uid=ref.uid, resource_version=version)
    except ClusterError:
        return False
    return True


def delivery(client: Client, claim: StoredClaim, *, is_kept: bool = False, is_given_up: bool = False) -> dict[str, str]:
    """Return the annotations of a Job whose gang is delivered now, by the clock of the API server.

    :param claim: The claim that was read.
    :param is_kept: No sweep deletes the Job, whatever `on_finish` said.
    :param is_given_up: No task instance is responsible for the gang any more.
    """
    marks = {ANNOTATION_DELIVERED: client.server_clock.now().isoformat(timespec="seconds")}
    policies = claim.policies
    if is_kept and policies is not None:
        policies = replace(policies, on_finish=OnFinish.KEEP)
    after = replace(claim, policies=policies, id="" if is_given_up else claim.id)
    return marks if after == claim else marks | {ANNOTATION_CLAIM: to_text(after)}


async def mark_delivered(
    client: Client, ref: GangRef, claim_id: str, *, is_kept: bool = False, is_given_up: bool = False
) -> Object | None:
    """Mark the gang as delivered, if `claim_id` is responsible for it when the server applies the patch.

    The server compares the whole text of the claim that was read. Returns the Job as the server stored it, or None if
    the Job is gone, another task instance is responsible, or the gang was delivered in the same way before.

    :param is_kept: As for `delivery`. `is_given_up` is, too.

    Raises:
        ClusterError: it is unknown whether the gang is marked.
    """
    requests = RetryingRequests(client, ref.namespace)
    pointer = annotation_pointer(ANNOTATION_CLAIM)
    compared: str | None = None
    refused: Invalid | None = None
    while True:
        gang = await requests.retry(partial(get_main_job, client, ref))
        text = None if gang is None else gang.view.metadata.annotations.claim
        if gang is None or text is None or gang.claim.id != claim_id:
            return None
        if gang.is_delivered and not (is_kept or is_given_up):
            return None
        if refused is not None and text == compared:
            raise refused  # the server sends the same answer for a patch that is invalid for another reason
        compared = text
        marks = delivery(client, gang.claim, is_kept=is_kept, is_given_up=is_given_up)
        values = {annotation_pointer(name): value for name, value in marks.items()}
        try:
            return await requests.retry(
                partial(requests.patch_job_if, ref.name, {"/metadata/uid": ref.uid, pointer: text}, values)
            )
        except NotFound:
            return None
        except Invalid as error:
            refused = error


async def hand_over(client: Client, ref: GangRef, claim_id: str) -> bool:
    """Give up the claim of a gang that runs on after its task has succeeded, if `claim_id` holds the claim.

    Nothing that happens to the task instance ends the gang after that. If the gang has ended, the next submission of
    the task is a new attempt. Returns false if the Job is gone, or another task instance is responsible.

    Raises:
        ClusterError: it is unknown whether the claim was given up.
    """
    return await mark_delivered(client, ref, claim_id, is_given_up=True) is not None
