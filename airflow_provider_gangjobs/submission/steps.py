"""The steps of a submission.

Each step has three parts: a write that may be repeated, a read of the object, and a check whether the object is the
wanted one. Only `run_step` decides whether to continue, to read the object, to retry, or to fail. So a lost answer, a
crash, and a second submitter are handled in the same way: read the object and check it.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    is_webhook_unavailable,
)
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.exceptions import GangUnsupported, JobDeleted, SubmissionConflict
from airflow_provider_gangjobs.gang.labels import ANNOTATION_GANG, ANNOTATION_ROLE_JOBS
from airflow_provider_gangjobs.gang.owner_references import is_owned_by
from airflow_provider_gangjobs.gang.queues import NoQueue, queue_of_job
from airflow_provider_gangjobs.gang.render.job import render_job, render_role
from airflow_provider_gangjobs.gang.roles import format_role_jobs
from airflow_provider_gangjobs.gang.state.halt import CLEANUP_HALT_REASON
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.roles import parts_to_end
from airflow_provider_gangjobs.kube.json_pointer import annotation_pointer, pointers_of
from airflow_provider_gangjobs.submission.adopt import differing_fields
from airflow_provider_gangjobs.submission.context import Progress, RestartSubmission, UnconfirmedStart
from airflow_provider_gangjobs.submission.jobs import JobState, job_state
from airflow_provider_gangjobs.submission.requests import TRIES_MAX
from airflow_provider_gangjobs.submission.role_jobs import start_role

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.queues import Queue
    from airflow_provider_gangjobs.gang.roles import RoleRanks
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.kube.objects import Object


log = logging.getLogger(__name__)


class Step(Protocol):
    """One write of a submission."""

    @property
    def name(self) -> str:
        """What the step does, for messages, such as `create PodGroup`."""

    def is_needed(self, progress: Progress) -> bool:
        """Return whether the step has anything to do."""

    async def apply(self, progress: Progress) -> Object:
        """Send the write once. Returns the object as the server stored it."""

    async def find(self, progress: Progress) -> Object | None:
        """Return the stored object, or None."""

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Note the stored object in `progress`. Returns false if the write must be repeated.

        Raises:
            GangJobError, RestartSubmission: the stored object prevents the submission.
        """


async def run_step(step: Step, progress: Progress) -> None:
    """Run a step until it is done, by this submitter or by another one.

    Raises:
        SubmissionFailed: the server refused the write, or could not be reached for too long.
        GangJobError, RestartSubmission: the stored object prevents the submission.
    """
    if not step.is_needed(progress):
        return
    backoff = progress.requests.backoff()
    last: ClusterError | None = None
    webhook_wait = _WebhookWait(step, progress)
    tries = 0
    while tries < TRIES_MAX:
        try:
            stored: Object | None = await step.apply(progress)
        except ClusterError as error:
            last = error
            if is_webhook_unavailable(error) and await webhook_wait.pause(error):
                continue
            _raise_if_refused(step, progress, error)
            if not (error.may_have_applied or _was_overtaken(step, error)):
                tries += 1
                if not await progress.requests.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    break
                continue
            stored = await _find_stored(step, progress)
        tries += 1
        if stored is not None and step.accept(progress, stored):
            return
        if not await progress.requests.sleep_before_retry(backoff.next()):
            break
    raise progress.failed(step.name, str(last or "The write was undone by others"), transient=True) from last


WEBHOOK_WAIT_S: Final = 90.0
"""How long a write is repeated while the server cannot call an admission webhook. The manager of Kueue is away for less
than this when it is updated. The deadline of the submission applies, too."""


class _WebhookWait:
    """The pauses of one step while the server cannot call a webhook."""

    def __init__(self, step: Step, progress: Progress) -> None:
        self._step = step
        self._progress = progress
        self._backoff = progress.requests.backoff()
        self._until: float | None = None

    async def pause(self, error: ClusterError) -> bool:
        """Wait before the next try. Return false if it has lasted too long."""
        now = self._progress.requests.clock.monotonic()
        if self._until is None:
            self._until = now + WEBHOOK_WAIT_S
            log.warning(
                "The submission of %s waits, because the API server cannot call a webhook (%s): %s",
                self._progress.where,
                self._step.name,
                error,
            )
        return now < self._until and await self._progress.requests.sleep_before_retry(self._backoff.next())


def _was_overtaken(step: Step, error: ClusterError) -> bool:
    """Return whether the object exists already, or has changed since it was read."""
    is_start = isinstance(step, (StartJob, StartRole))
    return isinstance(error, (AlreadyExists, Conflict)) or (is_start and isinstance(error, Invalid))


async def _find_stored(step: Step, progress: Progress) -> Object | None:
    try:
        return await step.find(progress)
    except ClusterError as error:
        raise progress.failed(step.name, str(error), transient=error.transient) from error


_WEBHOOK: Final = "admission webhook"
"""Part of the message of a request that an admission webhook has refused. The status is 403, as for a missing right."""
# Kubernetes 1.36 refuses a PodGroup while the API server does not see the Workload that it has just stored.
_NOT_READY: Final = ("not yet ready to handle request", "not found")
MISSING_RIGHT_ADVICE: Final = "Give the service account this permission; see the documented Role"
_MISSING_RIGHT: Final = re.compile(r'User ".*" cannot ')
"""Part of the message of a missing right. A RoleBinding whose Role does not exist adds "not found" to that message."""


def _raise_if_refused(step: Step, progress: Progress, error: ClusterError) -> None:
    if error.transient or error.may_have_applied or _was_overtaken(step, error):
        return
    if isinstance(error, Forbidden) and _is_not_ready(error.message):
        return
    if isinstance(error, NotFound) and isinstance(step, CreateOwned):
        _raise_not_served(step, progress, error)
    if isinstance(error, NotFound) and isinstance(step, (StartJob, StartRole)):
        raise JobDeleted(progress.where, "submitted", "The Job vanished before it was started") from error
    is_right_missing = isinstance(error, Forbidden) and _WEBHOOK not in error.message
    advice = MISSING_RIGHT_ADVICE if is_right_missing else ""
    raise progress.failed(step.name, str(error), transient=_is_quota_exceeded(error), advice=advice) from error


def _is_not_ready(message: str) -> bool:
    return any(text in message for text in _NOT_READY) and not _MISSING_RIGHT.search(message)


def _raise_not_served(step: CreateOwned, progress: Progress, error: ClusterError) -> None:
    """Restart the submission, or fail: the cluster has changed and no longer serves the resource of this step."""
    if progress.adopted:
        raise RestartSubmission(
            f"The cluster no longer serves {step.resource}", min_attempt=progress.attempt.number + 1
        )
    advice = "Discovery is repeated within ten minutes: try again then"
    raise progress.failed(step.name, str(error), transient=True, advice=advice) from error


def _is_quota_exceeded(error: ClusterError) -> bool:
    """Return whether a quota is exceeded. A retry may find free quota, but it does not find a missing permission."""
    return isinstance(error, Forbidden) and "exceeded quota" in error.message


class ConfirmStart(Struct, frozen=True):
    """Read the clock before a write after which pods may run. This step writes nothing.

    A process that was stopped may wake up after its task has ended, and would start a gang that nobody wants.
    """

    is_due: Callable[[], bool] | None
    """Whether so much time has passed that the caller must confirm that the task still runs. None means never."""
    name: str = "confirm that the task still runs"

    def is_needed(self, progress: Progress) -> bool:
        """Return whether the start must be confirmed."""
        return self.is_due is not None and self.is_due()

    async def apply(self, progress: Progress) -> Object:
        """Interrupt the submission.

        Raises:
            UnconfirmedStart: always.
        """
        raise UnconfirmedStart

    async def find(self, progress: Progress) -> Object | None:
        """Return None: this step writes nothing."""
        return None

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Return true: the step has nothing to accept."""
        return True


class CreateJob(Struct, frozen=True):
    """POST the Job, suspended, with the pods' link to their group."""

    name: str = "create Job"

    def is_needed(self, progress: Progress) -> bool:
        """Return whether no Job was adopted."""
        return not progress.job

    async def apply(self, progress: Progress) -> Object:
        """Render and create the Job."""
        body = render_job(progress.spec, progress.attempt, progress.decision, progress.scheduler, progress.shape)
        return await progress.requests.create(JOBS, body)

    async def find(self, progress: Progress) -> Object | None:
        """Return the Job of this name."""
        stored = await progress.requests.find(JOBS, progress.attempt.name)
        progress.adopted = stored is not None
        return stored

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Accept the Job if it has this submission id and was created from the same parameters."""
        job = read_job(stored)
        if job.is_being_deleted:
            raise RestartSubmission(f"{progress.where} is being deleted", min_attempt=progress.attempt.number + 1)
        if job_state(job) is JobState.DROPPED:
            raise RestartSubmission(
                f"{progress.where} is kept from a deleted submission", min_attempt=progress.attempt.number + 1
            )
        if (job.trigger_id, job.spec_hash) != (progress.attempt.trigger_id, progress.spec.hash):
            raise conflict(progress.spec, progress.attempt.trigger_id, job)
        if job.has_job_set != progress.has_job_set:
            raise RestartSubmission(f"{progress.where} was created at the same time, with or without a queue")
        progress.job = stored
        if job.has_roles and job.queue is not None:
            reason = f"the cluster gives every Job to Kueue's queue {job.queue}, and so the record of a gang with roles"
            raise GangUnsupported(reason, "Submit the gang in a namespace that has no LocalQueue of the name default")
        return True


def conflict(spec: GangSpec, trigger_id: str, job: Job) -> SubmissionConflict:
    """Return the error for a Job that exists and was created from another spec or submission."""
    return SubmissionConflict(
        ref=str(job.ref),
        uid=job.ref.uid,
        ours_hash=spec.hash,
        theirs_hash=job.spec_hash,
        fields=differing_fields(spec, job),
        trigger_id=trigger_id,
        theirs_trigger_id=job.trigger_id,
    )


class CreateOwned(Struct, frozen=True):
    """POST one object that the Job owns, so that the deletion of the Job also deletes the object."""

    resource: Resource
    body: Callable[[Progress], Object | None]
    on_created: Callable[[Progress, Object], None] = lambda progress, stored: None
    """Called with the object that was created or found."""

    @property
    def name(self) -> str:
        """The name of the step, with the kind of the object."""
        return f"create {self.resource.kind}"

    def is_needed(self, progress: Progress) -> bool:
        """Return whether the gang needs the object."""
        return self.body(progress) is not None

    async def apply(self, progress: Progress) -> Object:
        """Create the object."""
        return await progress.requests.create(self.resource, self.body(progress) or {})

    async def find(self, progress: Progress) -> Object | None:
        """Return the object of this name."""
        body = self.body(progress) or {}
        return await progress.requests.find(self.resource, body["metadata"]["name"])

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Accept the object if exactly this Job owns it. Otherwise restart, and do not wait for its deletion."""
        metadata = stored["metadata"]
        if not is_owned_by(metadata, progress.ref.uid) or "deletionTimestamp" in metadata:
            reason = f"{self.resource.kind} {metadata['name']} remains from another Job of this name"
            raise RestartSubmission(reason, min_attempt=progress.attempt.number + 1)
        self.on_created(progress, stored)
        return True


_COMPARED_FIELDS: Final = ("uid", "generation", "annotations")


class StartJob(Struct, frozen=True):
    """PATCH the Job so that it may run, unless it was halted, claimed, or deleted since it was last read.

    Without a queue the patch resumes the Job. Otherwise it gives the Job to its queue. The patch compares the
    generation and the annotations of the Job. A change of the spec and a deletion increase the generation. The patch
    does not compare the resourceVersion, because the Job controller writes the status of each new Job at once,
    suspended or not.
    """

    queue: Queue

    @property
    def name(self) -> str:
        """What the step does."""
        return self.queue.handover

    def is_needed(self, progress: Progress) -> bool:
        """Return whether the Job may not run yet, and the user does not start it."""
        queue = self._queue(progress)
        return not (progress.spec.keep_suspended and isinstance(queue, NoQueue)) and not queue.is_started(
            progress.stored
        )

    async def apply(self, progress: Progress) -> Object:
        """Patch the Job. If a comparison fails, the server answers 422 (Invalid)."""
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
        """Return the Job of this name."""
        stored = await progress.requests.find(JOBS, progress.attempt.name)
        if stored is None or stored["metadata"]["uid"] != progress.ref.uid:
            raise JobDeleted(progress.where, "submitted", "The Job vanished before it was started")
        return stored

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Accept the Job if it may run."""
        job = read_job(stored)
        if job.is_being_deleted:
            raise JobDeleted(progress.where, "submitted", "The Job was deleted before it was started")
        if job.halt_note == CLEANUP_HALT_REASON:
            raise RestartSubmission(
                "the cleanup has halted the Job in the meantime", min_attempt=progress.attempt.number + 1
            )
        if job.is_halted:
            raise progress.failed(self.name, "The Job was halted in the meantime", transient=True)
        progress.job = stored
        return self._queue(progress).is_started(job)

    def _queue(self, progress: Progress) -> Queue:
        """Return the queue that the Job was created for, or else the queue that the cluster has given to the Job.

        The connection may name another queue by now than when the Job was created.
        """
        is_known = progress.stored.requested_queue is not None or isinstance(self.queue, NoQueue)
        return queue_of_job(progress.stored) if is_known else self.queue


class StartRole(Struct, frozen=True):
    """PATCH the Job of a role that is not the first one so that it may run, unless it was ended since it was read."""

    role: str

    @property
    def name(self) -> str:
        """What the step does."""
        return f"unsuspend the Job of role {self.role}"

    def is_needed(self, progress: Progress) -> bool:
        """Return whether the Job is suspended."""
        return read_job(progress.role_jobs[self.role]).is_suspended

    async def apply(self, progress: Progress) -> Object:
        """Patch the Job. If a comparison fails, the server answers 422 (Invalid)."""
        metadata = progress.role_jobs[self.role]["metadata"]
        return await start_role(progress.requests, metadata["name"], metadata["uid"], metadata["generation"])

    async def find(self, progress: Progress) -> Object | None:
        """Return the Job of this name."""
        metadata = progress.role_jobs[self.role]["metadata"]
        stored = await progress.requests.find(JOBS, metadata["name"])
        if stored is None or stored["metadata"]["uid"] != metadata["uid"]:
            raise JobDeleted(progress.where, "submitted", f"The Job of role {self.role} vanished before it was started")
        return stored

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Accept the Job if it may run."""
        job = read_job(stored)
        if job.is_being_deleted:
            raise JobDeleted(progress.where, "submitted", f"The Job of role {self.role} was deleted")
        if not parts_to_end(Job(job.view, (job.view,))):
            raise progress.failed(self.name, "The gang was halted in the meantime", transient=True)
        progress.role_jobs[self.role] = stored
        return not job.is_suspended


def create_role(role: RoleRanks) -> CreateOwned:
    """Return the step that creates the Job of a role that is not the first one, suspended."""

    def body(progress: Progress) -> Object:
        return render_role(
            progress.spec, role, progress.attempt, progress.decision, progress.gang_scheduler, progress.ref.uid
        )

    def on_created(progress: Progress, stored: Object) -> None:
        progress.role_jobs[role.name] = stored

    return CreateOwned(JOBS, body, on_created)
