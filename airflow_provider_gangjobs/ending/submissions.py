"""Deletes the submission of an id, and gangs whose submission stopped half-way.

A gang that runs is stopped before its submission is deleted, and the deletion waits for its pods. The steps for each
Job have a fixed order, so that after a crash at any point the next deletion finds what is left:

1. Stop the gang, if it has not ended.
2. Remove the provider's finalizer from the pods, until no pod has it and the pods of a stopped gang have ended.
3. Delete the objects of the submission: groups, Service, files, ledger. Or delete the Job, which owns these objects.
4. Mark a Job that is kept as delivered, give its claim up, and label it as dropped. From then on the id is free.
   Lists of submissions select by the label, because they are pages, and the API server selects by labels only.

A half-submitted gang is completed or removed. Its suspended Job has no deadline and no time to live, so without the
cleanup it would stay forever. The cleanup may run anywhere, at any time, and twice at once. Each of its actions begins
with a patch that the server applies only if the Job has not changed since the cleanup read it. So a submitter that
continues in the meantime wins, and the cleanup changes no gang that runs.

A half-submitted gang of a task is removed, because nobody waits for it: the next try of the task submits a complete
gang. A half-submitted gang of a chosen id is started if all its objects exist and its roles are not the Jobs of a
JobSet, because its client may still ask for the id. Otherwise the gang is removed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.client import patch_unchanged
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.ending.delete import delete, foreign_error
from airflow_provider_gangjobs.ending.deliver import delivery
from airflow_provider_gangjobs.ending.release import release_gang
from airflow_provider_gangjobs.ending.stop import continue_stop, stop
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.exceptions.base import DELETION
from airflow_provider_gangjobs.gang.identity import (
    ALL_GANGS,
    OperationKey,
    gang_selector,
    is_owned_by,
    parse_default_submission_id,
    role_job_name,
    submission_selector,
)
from airflow_provider_gangjobs.gang.queues import queue_of_job
from airflow_provider_gangjobs.gang.render.files import FILES_VOLUME, config_map_name
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.schedulers import find_scheduler
from airflow_provider_gangjobs.gang.state.ownership import SweepAction
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, is_live, is_started_by_others, state_of
from airflow_provider_gangjobs.gang.state.pods import is_terminal
from airflow_provider_gangjobs.gang.state.stopped import BY_CLEANUP, BY_DELETION_OF_SUBMISSION
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, is_stopped_by_cleanup, read_job
from airflow_provider_gangjobs.jobs.requests import RetryingRequests, start_role
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOBS, SERVICES, Resource
from airflow_provider_gangjobs.kube.well_known import LABEL_DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime, timedelta

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.jobs.requests import Objects
    from airflow_provider_gangjobs.kube.views import Object


def selector_of(submission_id: str) -> str:
    """Return the label selector of all Jobs of an id, which a client chose or which is the default id of a task."""
    digest, attempt = parse_default_submission_id(submission_id) or (OperationKey(submission_id).digest, None)
    return submission_selector(digest, attempt)


async def jobs_of(requests: RetryingRequests, submission_id: str) -> Objects:
    """Return all Jobs of an id, the newest attempt first. Sends one request."""
    jobs = await requests.list(JOBS, selector_of(submission_id))
    return sorted(jobs, key=lambda job: read_job(job).attempt, reverse=True)


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
        SubmissionFailed: pods of a stopped gang were not gone in time, or a request was refused.
    """
    requests = RetryingRequests(client, namespace)
    try:
        gangs = [await requests.read_gang(found) for found in await jobs_of(requests, submission_id)]
        for gang in gangs:
            if gang.problem:
                raise foreign_error(gang, "read its record")
            await _stop_and_release(client, requests, gang, timeout_s)
            await (_delete_ended_job(requests, gang.ref) if job else _delete_owned_objects(requests, gang))
    except ClusterError as error:
        where = f"{namespace}/{submission_id}"
        step = "delete the objects of the submission"
        raise SubmissionFailed(where, step, str(error), error.transient, operation=DELETION) from error
    return tuple(gang.ref for gang in gangs)


async def _stop_and_release(client: Client, requests: RetryingRequests, gang: StoredGang, timeout_s: float) -> None:
    """Stop a live gang, and wait until none of the gang's pods runs or has the provider's finalizer."""
    ref, is_unfinished = gang.ref, not gang.is_ended
    if is_unfinished and not await stop(requests, ref, BY_DELETION_OF_SUBMISSION, only_if=is_live, seen=gang):
        await continue_stop(requests, gang)
    deadline = requests.clock.monotonic() + timeout_s
    backoff = requests.backoff()
    while True:
        # A Job of the same name that was deleted may have left pods: they are not those of this submission.
        pods, report = await requests.retry(partial(release_gang, client, ref))
        if not report.failed and not (is_unfinished and any(not is_terminal(pod) for pod in pods)):
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
    deletion = await delete(requests, ref, only_if=lambda gang: not is_live(gang))
    if deletion.kept is not None:
        cause = "The Job was started again in the meantime"
        advice = "Delete the submission again"
        raise SubmissionFailed(str(ref), "delete its Job", cause, advice=advice, operation=DELETION)


async def _delete_owned_objects(requests: RetryingRequests, gang: StoredGang) -> None:
    """Delete the provider's objects that exactly this Job owns. Then deliver the gang to nobody, and drop its Job."""
    name, uid = gang.ref.name, gang.ref.uid
    for resource in (*groups_of(gang), SERVICES):
        await requests.retry(partial(_delete_owned, requests, resource, name, uid), after_conflict=True)
    for config_map in await requests.list(CONFIGMAPS, gang_selector(name)):
        delete_config_map = partial(_delete_owned, requests, CONFIGMAPS, config_map["metadata"]["name"], uid)
        await requests.retry(delete_config_map, after_conflict=True)
    marks = delivery(requests.client, gang.claim, is_kept=True, is_given_up=True)
    await requests.patch_job(gang.ref, {"metadata": {"labels": {LABEL_DROPPED: "true"}, "annotations": marks}})


async def _delete_owned(requests: RetryingRequests, resource: Resource, name: str, uid: str) -> None:
    """Delete an object in the version in which the Job of this uid owns it. Not retried."""
    stored = await requests.find(resource, name)
    if stored is not None and is_owned_by(stored["metadata"], uid):
        with suppress(NotFound):
            await requests.delete_version(resource, stored["metadata"], "Background")


def groups_of(gang: StoredGang) -> tuple[Resource, ...]:
    """Return the resources of the groups that the provider created for the Job, and not the Job controller."""
    decision = PlacementDecision.parse(gang.placement)
    scheduler = find_scheduler(decision.detail) if decision.placement is Placement.GANG else None
    return scheduler.objects[::-1] if scheduler else ()


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CleanupReport:
    """The result of a cleanup."""

    looked_at: int = 0
    gangs: dict[GangRef, SweepAction] = field(default_factory=dict)
    """The action for each half-submitted gang. After a dry run, the planned action."""
    failures: dict[GangRef, str] = field(default_factory=dict)
    """The gangs that could not be cleaned up, and why. The next cleanup tries again."""


def is_half_submitted(job: StoredGang, *, now: datetime, older_than: timedelta) -> bool:
    """Return whether the Job was created at least `older_than` ago and never started, or its removal has begun."""
    if is_started_by_others(job) or not job.is_unstarted:
        return False
    if state_of(job) is SubmissionState.STOPPED:
        return is_stopped_by_cleanup(job)
    assert job.created_at is not None, "a stored Job has a creation time"
    return is_live(job) and now - job.created_at >= older_than


def _must_be_removed(job: StoredGang) -> bool:
    """Return whether a half-submitted gang is removed even if all its objects exist.

    Nobody waits for the gang of a task. The UIDs of the Jobs of a JobSet are noted by the last step of a submission.
    """
    return job.record.task is not None or job.record.has_job_set or state_of(job) is SubmissionState.STOPPED


def _required_objects(job: StoredGang, pod: Object) -> Iterator[tuple[Resource, str]]:
    """Return the objects that must exist before a Job may run, as resource and name.

    :param pod: The spec of the Job's pods.
    """
    name = job.ref.name
    for role in job.record.roles[1:]:
        yield JOBS, role_job_name(name, role.name)
    for resource in groups_of(job):
        yield resource, name
    if pod.get("subdomain") == name:
        yield SERVICES, name
    for volume in pod.get("volumes") or ():
        if volume["name"] == FILES_VOLUME:
            for source in [volume, *((volume.get("projected") or {}).get("sources") or ())]:
                if "configMap" in source:
                    yield CONFIGMAPS, source["configMap"]["name"]


async def clean_up_half_submitted(
    client: Client,
    *,
    namespace: str | None,
    older_than: timedelta,
    now: Callable[[], datetime],
    dry_run: bool = False,
) -> CleanupReport:
    """Complete or remove the half-submitted gangs of a namespace. Safe to repeat.

    :param namespace: The namespace. None means the whole cluster.
    :param older_than: Gangs whose Job was created more recently than this are left alone.
    :param now: The time of the API server, which writes the creation times. It is read after the list.
    :param dry_run: Only report what would be done.

    Raises:
        ClusterError: the Jobs could not be listed.
    """
    jobs = await client.list(JOBS, namespace, label_selector=ALL_GANGS)
    at = now()
    report = CleanupReport(looked_at=len(jobs))
    for stored in jobs:
        job = read_job(stored)
        if not is_half_submitted(job, now=at, older_than=older_than):
            continue
        ref = job.ref
        requests = RetryingRequests(client, ref.namespace)
        try:
            is_removed = _must_be_removed(job) or await _is_incomplete(requests, job, stored)
            done = dry_run or await (_remove if is_removed else _complete)(requests, stored)
        except ClusterError as error:
            report.failures[ref] = str(error)
        else:
            action = SweepAction.REMOVE if is_removed else SweepAction.COMPLETE
            report.gangs[ref] = action if done else SweepAction.LEAVE
            log.info("Cleanup of half-submitted gang %s: %s", ref, report.gangs[ref])
    return report


async def _is_incomplete(requests: RetryingRequests, job: StoredGang, stored: Object) -> bool:
    for resource, name in _required_objects(job, stored["spec"]["template"]["spec"]):
        one = await requests.find(resource, name)
        is_shared = resource is CONFIGMAPS and name != config_map_name(job.ref.name)
        if one is None or not (is_shared or is_owned_by(one["metadata"], job.ref.uid)):
            return True
    return False


async def _complete(requests: RetryingRequests, stored: Object) -> bool:
    job = read_job(stored)
    if job.record.roles:
        for one in (await requests.read_gang(stored)).jobs[1:]:
            await start_role(requests, one.metadata.name, one.metadata.uid, one.metadata.generation)
    return await patch_unchanged(requests.client, JOBS, stored["metadata"], queue_of_job(job).start_patch(job))


async def _remove(requests: RetryingRequests, stored: Object) -> bool:
    job = read_job(stored)

    def is_unchanged(gang: StoredGang) -> bool:
        return gang.view.metadata.resource_version == job.view.metadata.resource_version

    # The gang is stopped first. A submitter that continues with this Job finds it stopped. A submitter that was faster
    # has changed the Job, and then the gang is left alone. The Jobs of the other roles may have been started, and their
    # pods keep the first Job until they are released.
    is_stopped = await stop(requests, job.ref, BY_CLEANUP, only_if=is_unchanged, seen=job, pauses_s=())
    return is_stopped and (await delete(requests, job.ref)).deleted is not None
