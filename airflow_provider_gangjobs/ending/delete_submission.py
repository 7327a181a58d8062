"""Delete a submission by its id. A gang that runs is halted first, and the deletion waits for its pods.

The steps for each Job have a fixed order, so that after a crash at any point the next deletion finds what is left:

1. Halt the gang, if it has not ended.
2. Remove the provider's finalizer from the pods, until no pod has it and the pods of a halted gang have ended.
3. Delete the objects of the submission: groups, Service, files, ledger. Or delete the Job, which owns these objects.
4. Label a Job that is kept as dropped. From then on the id is free.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.client import PropagationPolicy
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, JOBS, PODS, SERVICES, Resource
from airflow_provider_gangjobs.ending.delete_gang import delete_job_if
from airflow_provider_gangjobs.ending.release import release_pods
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.exceptions.submission import DELETION
from airflow_provider_gangjobs.gang.identity import (
    OperationKey,
    gang_selector,
    is_owned_by,
    parse_default_submission_id,
    submission_selector,
)
from airflow_provider_gangjobs.gang.render.shape_and_placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.schedulers.selection import find_scheduler
from airflow_provider_gangjobs.gang.state.halt import DELETION_HALT_REASON
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.pods import is_held, is_terminal
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.jobs.requests import RetryingRequests, end_roles
from airflow_provider_gangjobs.kube.views import PodView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_DROPPED

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.jobs.requests import Objects


def selector_of(submission_id: str) -> str:
    """Return the label selector of all Jobs of an id, which a client chose or which is the default id of a task."""
    digest, attempt = parse_default_submission_id(submission_id) or (OperationKey(submission_id).digest, None)
    return submission_selector(digest, attempt)


async def jobs_of(requests: RetryingRequests, submission_id: str) -> Objects:
    """Return all Jobs of an id, the newest attempt first. Sends one request."""
    jobs = await requests.list(JOBS, selector_of(submission_id))
    return sorted(jobs, key=lambda job: read_job(job).attempt_number, reverse=True)


async def delete_submission(
    client: Client,
    submission_id: str,
    *,
    namespace: str,
    job: bool = False,
    timeout_s: float,
) -> tuple[GangRef, ...]:
    """Delete a submission. Returns the Jobs that the submission had. Safe to repeat, also after a failure.

    :param job: Also delete the Jobs.
    :param timeout_s: How many seconds to wait for the pods of a gang.

    Raises:
        SubmissionFailed: pods of a halted gang were not gone in time, or a request was refused.
    """
    requests = RetryingRequests(client, namespace)
    try:
        gangs = [await requests.read_gang(found) for found in await jobs_of(requests, submission_id)]
        for gang in gangs:
            await _halt_and_release(client, requests, gang, timeout_s)
            await (_delete_ended_job(requests, gang.ref) if job else _delete_owned_objects(requests, gang))
    except ClusterError as error:
        where = f"{namespace}/{submission_id}"
        step = "delete the objects of the submission"
        raise SubmissionFailed(where, step, str(error), error.transient, operation=DELETION) from error
    return tuple(gang.ref for gang in gangs)


async def _halt_and_release(client: Client, requests: RetryingRequests, gang: StoredGang, timeout_s: float) -> None:
    """Halt a live gang, and wait until none of the gang's pods runs or has the provider's finalizer."""
    ref, state = gang.ref, state_of(gang)
    is_unfinished = state in {SubmissionState.IN_PROGRESS, SubmissionState.HALTED}
    if state is SubmissionState.IN_PROGRESS:
        await requests.jobs(ref).halt(gang, DELETION_HALT_REASON)
    if is_unfinished and gang.has_roles:
        await end_roles(requests, ref)
    deadline = requests.clock.monotonic() + timeout_s
    backoff = requests.backoff()
    while True:
        await release_pods(client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)
        pods = [view(PodView, pod) for pod in await requests.list(PODS, gang_selector(ref.name))]
        if not any(is_held(pod) or (is_unfinished and not is_terminal(pod)) for pod in pods):
            return
        if requests.clock.monotonic() >= deadline:
            cause = f"Some pods still ran, or could not be released, after {timeout_s:g} s"
            advice = (
                "Check the nodes of the pods, then delete the submission again: the deletion continues where it stopped"
            )
            step = "wait for its pods to be gone"
            raise SubmissionFailed(str(ref), step, cause, advice=advice, operation=DELETION)
        await requests.clock.sleep(backoff.next())


async def _delete_ended_job(requests: RetryingRequests, ref: GangRef) -> None:
    deletion = await delete_job_if(requests, ref, lambda gang: state_of(gang) is not SubmissionState.IN_PROGRESS)
    if deletion.kept is not None:
        cause = "The Job was started again in the meantime"
        advice = "Delete the submission again"
        raise SubmissionFailed(str(ref), "delete its Job", cause, advice=advice, operation=DELETION)


async def _delete_owned_objects(requests: RetryingRequests, gang: StoredGang) -> None:
    """Delete the provider's objects that exactly this Job owns, then label the Job as dropped."""
    name, uid = gang.ref.name, gang.ref.uid
    for resource in (*groups_of(gang), SERVICES):
        await requests.retry(partial(_delete_owned, requests, resource, name, uid), after_conflict=True)
    for config_map in await requests.list(CONFIGMAPS, gang_selector(name)):
        delete_config_map = partial(_delete_owned, requests, CONFIGMAPS, config_map["metadata"]["name"], uid)
        await requests.retry(delete_config_map, after_conflict=True)
    await requests.jobs(gang.ref).patch({"metadata": {"labels": {LABEL_DROPPED: "true"}}})


async def _delete_owned(requests: RetryingRequests, resource: Resource, name: str, uid: str) -> None:
    """Delete an object in the version in which the Job of this uid owns it. Not retried."""
    stored = await requests.find(resource, name)
    if stored is not None and is_owned_by(stored["metadata"], uid):
        with suppress(NotFound):
            await requests.delete_version(resource, stored["metadata"], PropagationPolicy.BACKGROUND)


def groups_of(gang: StoredGang) -> tuple[Resource, ...]:
    """Return the resources of the groups that the provider created for the Job, and not the Job controller."""
    decision = PlacementDecision.parse(gang.decision or "off")
    scheduler = find_scheduler(decision.detail) if decision.placement is Placement.GANG else None
    return tuple(Resource(*kind) for kind in reversed(scheduler.objects)) if scheduler else ()


__all__ = ["delete_submission", "groups_of", "jobs_of", "selector_of"]
