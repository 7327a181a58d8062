"""The steps that create and start the Jobs of a gang, and create what the Jobs own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, ClusterError, Conflict, Invalid
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.exceptions import JobDeleted, SubmissionConflict
from airflow_provider_gangjobs.gang.identity import is_owned_by
from airflow_provider_gangjobs.gang.queues import given_queue_error, queue_of_job
from airflow_provider_gangjobs.gang.render.job_manifest import render_job, render_role
from airflow_provider_gangjobs.gang.roles import format_role_jobs
from airflow_provider_gangjobs.gang.state.gang_jobs import jobs_to_end
from airflow_provider_gangjobs.gang.state.halt import is_halted_by_cleanup
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.jobs.requests import RestartSubmission, start_role
from airflow_provider_gangjobs.kube.names import annotation_pointer, pointers_of
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_GANG, ANNOTATION_ROLE_JOBS
from airflow_provider_gangjobs.submission.adopt_or_submit import differing_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.errors import NotFound
    from airflow_provider_gangjobs.gang.queues import Queue
    from airflow_provider_gangjobs.gang.roles import RoleRanks
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.steps.step import Progress


class CreateJob(Struct, frozen=True):
    """POST the Job, suspended, with the pods' link to their group."""

    name: str = "create Job"
    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict)
    lets_pods_run: ClassVar[bool] = True
    """A queue may start the Job from then on."""

    def is_needed(self, progress: Progress) -> bool:
        return not progress.job

    async def apply(self, progress: Progress) -> Object:
        body = render_job(progress.spec, progress.attempt, progress.decision, progress.scheduler, progress.shape)
        return await progress.requests.create(JOBS, body)

    async def find(self, progress: Progress) -> Object | None:
        return await progress.requests.find(JOBS, progress.attempt.name)

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        job = read_job(stored)
        if job.is_being_deleted:
            raise RestartSubmission(f"{progress.where} is being deleted", min_attempt=progress.attempt.number + 1)
        if state_of(job) is SubmissionState.DROPPED:
            raise RestartSubmission(
                f"{progress.where} is kept from a deleted submission", min_attempt=progress.attempt.number + 1
            )
        if (job.submission_id, job.spec_hash) != (progress.attempt.submission_id, progress.spec.hash):
            raise conflict(progress.spec, progress.attempt.submission_id, job)
        if job.has_job_set != progress.has_job_set:
            raise RestartSubmission(f"{progress.where} was created at the same time, with or without a queue")
        progress.job, progress.adopted = stored, is_found
        # The dry run has found no queue, but the LocalQueue may have been created since.
        if job.has_roles and (error := given_queue_error(job)) is not None:
            raise error
        return True

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        return None  # the namespace does not exist


def conflict(spec: GangSpec, submission_id: str, job: StoredGang) -> SubmissionConflict:
    """Return the error for a Job that exists and was created from another spec or submission."""
    return SubmissionConflict(
        ref=str(job.ref),
        uid=job.ref.uid,
        ours_hash=spec.hash,
        theirs_hash=job.spec_hash,
        fields=differing_fields(spec, job),
        submission_id=submission_id,
        theirs_submission_id=job.submission_id,
    )


class CreateOwned(Struct, frozen=True):
    """POST one object that the Job owns, so that the deletion of the Job also deletes the object."""

    resource: Resource
    body: Callable[[Progress], Object | None]
    on_created: Callable[[Progress, Object], None] = lambda progress, stored: None
    """Called with the object that was created or found."""
    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict)
    lets_pods_run: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"create {self.resource.kind}"

    def is_needed(self, progress: Progress) -> bool:
        return self.body(progress) is not None

    async def apply(self, progress: Progress) -> Object:
        return await progress.requests.create(self.resource, self.body(progress) or {})

    async def find(self, progress: Progress) -> Object | None:
        body = self.body(progress) or {}
        return await progress.requests.find(self.resource, body["metadata"]["name"])

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        metadata = stored["metadata"]
        if not is_owned_by(metadata, progress.ref.uid) or "deletionTimestamp" in metadata:
            # The next attempt has another name, so nothing waits for the deletion of this object.
            reason = f"{self.resource.kind} {metadata['name']} remains from another Job of this name"
            raise RestartSubmission(reason, min_attempt=progress.attempt.number + 1)
        self.on_created(progress, stored)
        return True

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        if progress.adopted:
            reason = f"The cluster no longer serves {self.resource}"
            return RestartSubmission(reason, min_attempt=progress.attempt.number + 1)
        advice = "Discovery is repeated within ten minutes: try again then"
        return progress.failed(self.name, str(error), transient=True, advice=advice)


_COMPARED_FIELDS: Final = ("uid", "generation", "annotations")


class StartJob(Struct, frozen=True):
    """PATCH the Job so that it may run, unless it was halted, claimed, or deleted since it was last read.

    If a comparison of the patch fails, the server answers 422 (Invalid).
    Without a queue the patch resumes the Job. Otherwise it gives the Job to its queue. The patch compares the
    generation and the annotations of the Job. A change of the spec and a deletion increase the generation. The patch
    does not compare the resourceVersion, because the Job controller writes the status of each new Job at once,
    suspended or not.
    """

    queue: Queue
    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict, Invalid)
    lets_pods_run: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.queue.last_step_name

    def is_needed(self, progress: Progress) -> bool:
        queue = self._queue(progress)
        return not (progress.spec.keep_suspended and queue.name is None) and not queue.is_started(progress.stored)

    async def apply(self, progress: Progress) -> Object:
        metadata = progress.job["metadata"]
        patch = self._queue(progress).start_patch(progress.stored)
        annotations = {ANNOTATION_GANG: str(progress.decision)}
        if progress.role_uids:
            annotations[ANNOTATION_ROLE_JOBS] = format_role_jobs(progress.role_uids)
        values = {annotation_pointer(name): value for name, value in annotations.items()}
        return await progress.requests.patch_job_if(
            metadata["name"],
            {f"/metadata/{name}": metadata[name] for name in _COMPARED_FIELDS},
            values | dict(pointers_of(patch)),
        )

    async def find(self, progress: Progress) -> Object | None:
        stored = await progress.requests.find(JOBS, progress.attempt.name)
        if stored is None or stored["metadata"]["uid"] != progress.ref.uid:
            raise JobDeleted(progress.where, "submitted", "The Job vanished before it was started")
        return stored

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        job = read_job(stored)
        if job.is_being_deleted:
            raise JobDeleted(progress.where, "submitted", "The Job was deleted before it was started")
        if is_halted_by_cleanup(job):
            raise RestartSubmission(
                "the cleanup has halted the Job in the meantime", min_attempt=progress.attempt.number + 1
            )
        if job.is_halted:
            raise progress.failed(self.name, "The Job was halted in the meantime", transient=True)
        progress.job = stored
        return self._queue(progress).is_started(job)

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        return JobDeleted(progress.where, "submitted", "The Job vanished before it was started")

    def _queue(self, progress: Progress) -> Queue:
        """Return the queue that the Job was created for, or else the queue that the cluster has given to the Job.

        The connection may name another queue by now than when the Job was created.
        """
        is_known = progress.stored.requested_queue is not None or self.queue.name is None
        return queue_of_job(progress.stored) if is_known else self.queue


class StartRole(Struct, frozen=True):
    """PATCH the Job of a role that is not the first one so that it may run, unless it was ended since it was read."""

    role: str
    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict, Invalid)
    lets_pods_run: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"unsuspend the Job of role {self.role}"

    def is_needed(self, progress: Progress) -> bool:
        return read_job(progress.role_jobs[self.role]).is_suspended

    async def apply(self, progress: Progress) -> Object:
        metadata = progress.role_jobs[self.role]["metadata"]
        return await start_role(progress.requests, metadata["name"], metadata["uid"], metadata["generation"])

    async def find(self, progress: Progress) -> Object | None:
        metadata = progress.role_jobs[self.role]["metadata"]
        stored = await progress.requests.find(JOBS, metadata["name"])
        if stored is None or stored["metadata"]["uid"] != metadata["uid"]:
            raise JobDeleted(progress.where, "submitted", f"The Job of role {self.role} vanished before it was started")
        return stored

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        job = read_job(stored)
        if job.is_being_deleted:
            raise JobDeleted(progress.where, "submitted", f"The Job of role {self.role} was deleted")
        if not jobs_to_end(StoredGang(job.view, (job.view,))):
            raise progress.failed(self.name, "The gang was halted in the meantime", transient=True)
        progress.role_jobs[self.role] = stored
        return not job.is_suspended

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        return JobDeleted(progress.where, "submitted", "The Job vanished before it was started")


def create_role(role: RoleRanks) -> CreateOwned:
    """Return the step that creates the Job of a role that is not the first one, suspended."""

    def body(progress: Progress) -> Object:
        return render_role(
            progress.spec, role, progress.attempt, progress.decision, progress.gang_scheduler, progress.ref.uid
        )

    def on_created(progress: Progress, stored: Object) -> None:
        progress.role_jobs[role.name] = stored

    return CreateOwned(JOBS, body, on_created)


__all__ = ["CreateJob", "CreateOwned", "StartJob", "StartRole", "conflict", "create_role"]
