"""Forget: delete a submission by its id. What runs is halted first, and waited for.

For each of its Jobs, in this order, so that a crash at any point leaves something that is found again:

1. Halt it, if it has not ended.
2. Free its pods of our finalizer, until none is held and those of a halted one have ended.
3. Delete what belongs to it: groups, Service, files, ledger. Or the Job, which takes them along.
4. Mark a kept Job as nobody's. From then on the id is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, JOBS, PODS, SERVICES, Resource, podgroups, workloads
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.labels import LABEL_DROPPED
from airflow_provider_gangjobs.gang.render.dialects import find_dialect
from airflow_provider_gangjobs.gang.render.halting import halt_patch
from airflow_provider_gangjobs.gang.render.owner_references import is_owned_by
from airflow_provider_gangjobs.gang.render.policy import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.selectors import gang_selector
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.pods import is_held, is_terminal
from airflow_provider_gangjobs.kube.views import PodView, view
from airflow_provider_gangjobs.submission.jobs import JobState, job_state
from airflow_provider_gangjobs.submission.operations import jobs_of
from airflow_provider_gangjobs.submission.requests import Api, Object, RetryingRequests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef

HALT_REASON: Final = "its submission is being deleted"


async def delete_submission(
    client: Api,
    trigger_id: str,
    *,
    namespace: str,
    release: Callable[[GangRef], Awaitable[object]],
    job: bool = False,
    timeout_s: float,
    clock: Clock | None = None,
) -> tuple[GangRef, ...]:
    """Delete a submission; its Jobs too if `job`. Returns the Jobs that it had; none if it was gone already.

    `release` frees a gang's pods of our finalizer. Safe to repeat, also after a failure.

    Raises:
        SubmissionFailed: pods of a halted gang were not gone in time, or a request was refused.
    """
    requests = RetryingRequests(client, namespace, clock=clock)
    try:
        jobs = [read_job(found) for found in await jobs_of(requests, trigger_id)]
        for stored in jobs:
            await _halt_and_release(requests, stored, release, timeout_s)
            await (_delete_ended_job(requests, stored.ref) if job else _delete_owned_objects(requests, stored))
    except ClusterError as error:
        where = f"{namespace}/{trigger_id}"
        raise SubmissionFailed(where, "delete the submission", str(error), error.transient) from error
    return tuple(stored.ref for stored in jobs)


async def _halt_and_release(
    requests: RetryingRequests, job: Job, release: Callable[[GangRef], Awaitable[object]], timeout_s: float
) -> None:
    """Afterwards none of its pods runs or is held by us."""
    ref, state = job.ref, job_state(job)
    ongoing = state in {JobState.LIVE, JobState.HALTED}
    if state is JobState.LIVE:
        await requests.mark_job(ref, halt_patch(HALT_REASON, queued=job.is_queued_by_kueue))
    deadline = requests.clock.monotonic() + timeout_s
    backoff = requests.backoff()
    while True:
        await release(ref)
        pods = [view(PodView, pod) for pod in await requests.list(PODS, gang_selector(ref.name))]
        if not any(is_held(pod) or (ongoing and not is_terminal(pod)) for pod in pods):
            return
        if requests.clock.monotonic() >= deadline:
            cause = f"some still ran, or could not be released, after {timeout_s:g} s"
            advice = "Look at their nodes, then delete the submission again: it goes on from here"
            raise SubmissionFailed(str(ref), "wait for its pods to be gone", cause, advice=advice)
        await requests.clock.sleep(backoff.next())


async def _delete_ended_job(requests: RetryingRequests, ref: GangRef) -> None:
    """Delete the Job, unless it is live again in the version that would be deleted."""
    removal = await requests.remove_if(
        JOBS, ref.name, ref.uid, lambda stored: job_state(read_job(stored)) is not JobState.LIVE
    )
    if removal.kept is not None:
        cause = "it was let run again meanwhile"
        raise SubmissionFailed(str(ref), "delete its Job", cause, advice="Delete the submission again")


async def _delete_owned_objects(requests: RetryingRequests, job: Job) -> None:
    """Delete what the Job owns of ours, then mark it. Nothing is deleted that this very Job does not own."""
    for resource in groups_of(job):
        await _delete_owned(requests, resource, job)
    await _delete_owned(requests, SERVICES, job)
    for config_map in await requests.list(CONFIGMAPS, gang_selector(job.ref.name)):
        await _delete_if_owned(requests, CONFIGMAPS, config_map, job)
    await requests.mark_job(job.ref, {"metadata": {"labels": {LABEL_DROPPED: "true"}}})


def groups_of(job: Job) -> tuple[Resource, ...]:
    """PodGroup and Workload, where they are ours. What the Job controller made is the Job controller's."""
    decision = PlacementDecision.parse(job.decision or "off")
    dialect = find_dialect(decision.detail) if decision.placement is Placement.GANG else None
    if dialect is None:
        return ()
    kinds = {"podgroups": podgroups(dialect.version), "workloads": workloads(dialect.version)}
    return tuple(resource for plural, resource in kinds.items() if plural in dialect.required_resources)


async def _delete_owned(requests: RetryingRequests, resource: Resource, job: Job) -> None:
    stored = await requests.find(resource, job.ref.name)
    if stored is not None:
        await _delete_if_owned(requests, resource, stored, job)


async def _delete_if_owned(requests: RetryingRequests, resource: Resource, stored: Object, job: Job) -> None:
    metadata = stored["metadata"]
    await requests.remove_if(
        resource,
        metadata["name"],
        metadata["uid"],
        lambda version: is_owned_by(version["metadata"], job.ref.uid),
        seen=stored,
    )
