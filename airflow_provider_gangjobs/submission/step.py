"""The steps of a submission: the progress that they share, and the loop that runs each of them.

Each step has three parts: a write that may be repeated, a read of the object, and a check whether the object is the
wanted one. Only `run_step` decides whether to continue, to read the object, to retry, or to fail. So a lost answer, a
crash, and a second submitter are handled in the same way: read the object and check it.

A gang with roles in a queue of Kueue has one JobSet, whose Jobs are those of the roles, because Kueue makes a Workload
for each Job, and one Workload for a JobSet. A Job of a JobSet cannot be the main Job of a gang, because the JobSet
controller deletes and creates these Jobs. So the main Job is a Job without pods, which owns the JobSet, and everything
else is as for every gang. docs/decisions/gang.md gives the reasons for the order:

1. The main Job and the JobSet are created, both suspended. The JobSet controller creates the Jobs, also suspended.
2. When all Jobs exist, their UIDs are known. A Job that the JobSet controller creates later has another UID
   and does not belong to the gang.
3. The JobSet gets the label of its queue. From then on Kueue may let it run.
4. The main Job is started, with the UIDs in an annotation. Now the submission is complete.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.cluster.client import patch_version
from airflow_provider_gangjobs.cluster.errors import (
    AlreadyExists,
    BadRequest,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    causes_in,
    is_webhook_unavailable,
)
from airflow_provider_gangjobs.exceptions import (
    GangUnsupported,
    InvalidGangSpec,
    Problem,
    SubmissionConflict,
    SubmissionFailed,
)
from airflow_provider_gangjobs.gang.identity import gang_selector, is_owned_by, role_job_name
from airflow_provider_gangjobs.gang.queues import given_queue_error, queue_of_job
from airflow_provider_gangjobs.gang.record import Submitted
from airflow_provider_gangjobs.gang.render.job_manifest import group_of, render_job, render_job_set, render_role
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.state.stored_gang import (
    StoredGang,
    build_gang,
    is_stopped_by_cleanup,
    jobs_to_end,
    read_gang,
    read_job,
)
from airflow_provider_gangjobs.jobs.requests import TRIES_MAX, RestartSubmission, start_role
from airflow_provider_gangjobs.kube.names import pointers_of
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOB_SETS, JOBS, Resource
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.submission.submission import differing_fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.errors import ApiError
    from airflow_provider_gangjobs.gang.identity import Attempt, GangRef
    from airflow_provider_gangjobs.gang.queues import Queue
    from airflow_provider_gangjobs.gang.render.placement import Shape
    from airflow_provider_gangjobs.gang.schedulers import GangScheduler, SchedulingGroup
    from airflow_provider_gangjobs.gang.spec import GangSpec, RoleRanks
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.submission import ConfirmTry


class Progress(Struct, eq=False):
    """The progress of one attempt. Only the steps of the submission change it."""

    requests: RetryingRequests
    spec: GangSpec
    """The manifest of the spec, if any, is parsed."""
    shape: Shape
    attempt: Attempt
    decision: PlacementDecision
    scheduler: GangScheduler | None
    job: Object = {}
    """The Job as it was last read. Empty before the Job exists. A step replaces the object and never changes it."""
    owned: dict[tuple[str, str], Object] = {}
    """The objects that the Job owns, by kind and name, as they were last read."""
    role_uids: dict[str, str] = {}
    """The UIDs of the Jobs of the JobSet, by role."""
    confirm: ConfirmTry | None = None
    """Called before each write that lets pods run; see `SubmissionRequest`."""
    adopted: bool = False
    dry_run: bool = False
    """Whether the server validates the Job in a dry run before anything is created."""
    notes: list[str] = []
    """Guarantees that the submission has lost, for the log."""

    @property
    def ref(self) -> GangRef:
        """The reference to the Job. The Job must exist."""
        return self.stored.ref

    @property
    def stored(self) -> StoredGang:
        """The parsed Job, as it was last read. The Job must exist."""
        return read_job(self.job)

    @property
    def has_job_set(self) -> bool:
        """Whether the roles of the gang are one JobSet."""
        if self.job:
            return self.stored.record.has_job_set
        return self.spec.roles is not None and self.shape.kueue_queue is not None

    @property
    def where(self) -> str:
        """The namespace and name of the Job, for messages."""
        return f"{self.attempt.namespace}/{self.attempt.name}"

    @property
    def group(self) -> SchedulingGroup:
        """The scheduling group of the Job's pods."""
        return group_of(self.job, self.shape)

    @property
    def gang_scheduler(self) -> GangScheduler | None:
        """The gang scheduler, if the pods are placed as a gang. None after a fallback."""
        return self.scheduler if self.decision.placement is Placement.GANG else None

    def fall_back(self, reason: str) -> None:
        """Continue without gang scheduling, and note the reason."""
        self.decision = PlacementDecision(Placement.BASIC, reason)
        self.notes.append(f"Not a gang: {reason}")

    def failed(self, step: str, cause: str, *, transient: bool, advice: str = "") -> SubmissionFailed:
        """Return the error for a step that failed."""
        return SubmissionFailed(self.where, step, cause, transient, advice)

    def superseded(self, reason: str) -> RestartSubmission:
        """Return the error for an attempt that cannot be completed. The next attempt has another name."""
        return RestartSubmission(reason, min_attempt=self.attempt.number + 1)


log = logging.getLogger(__name__)


class Step(Struct, frozen=True):
    """One write of a submission."""

    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict)
    """The answers that show that the object exists already, or has changed since it was read."""
    lets_pods_run: ClassVar[bool] = False
    """Whether pods may run after the write, so that the try of the task is confirmed directly before the write."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the step does, for messages, such as `create PodGroup`."""

    @abstractmethod
    def is_needed(self, progress: Progress) -> bool:
        """Return whether the step has anything to do."""

    @abstractmethod
    async def apply(self, progress: Progress) -> Object:
        """Send the write once. Returns the object as the server stored it."""

    async def find(self, progress: Progress) -> Object | None:
        """Return the stored object, or None, so that the write is repeated."""
        return None

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        """Note the stored object in `progress`. Returns false if the write must be repeated.

        :param is_found: Whether `find` has returned the object. Otherwise `apply` has.

        Raises:
            GangJobError, RestartSubmission: the stored object prevents the submission.
        """
        return True

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        """Return the error after the answer 404 (Not Found) to the write. None if the answer has no special meaning."""
        return None


class RepeatableStep(Step, frozen=True):
    """A step that is one function. It stores nothing that has to be read and checked, so it is repeated as a whole."""

    name: str
    condition: Callable[[Progress], bool]
    function: Callable[[Progress], Awaitable[None]]
    """What the step does. A `GangJobError` or a `RestartSubmission` ends the submission."""

    def is_needed(self, progress: Progress) -> bool:
        return self.condition(progress)

    async def apply(self, progress: Progress) -> Object:
        await self.function(progress)
        return progress.job


async def run_step(step: Step, progress: Progress) -> None:
    """Run a step until it is done, by this submitter or by another one.

    Raises:
        SubmissionFailed: the server refused the write, or could not be reached for too long.
        GangJobError, RestartSubmission: the stored object prevents the submission.
        UnconfirmedTry: the task may not want the gang any more, and the write lets pods run.
    """
    if not step.is_needed(progress):
        return
    backoff = progress.requests.backoff()
    last: ClusterError | None = None
    webhook_backoff, webhook_give_up_at = progress.requests.backoff(), inf
    tries = 0
    while tries < TRIES_MAX:
        if step.lets_pods_run and progress.confirm is not None:
            await progress.confirm()
        is_found = False
        try:
            stored: Object | None = await step.apply(progress)
        except ClusterError as error:
            last = error
            if is_webhook_unavailable(error):
                now = progress.requests.clock.monotonic()
                if webhook_give_up_at == inf:
                    webhook_give_up_at = now + WEBHOOK_WAIT_S
                    log.warning(_WEBHOOK_UNAVAILABLE, progress.where, step.name, error)
                if now < webhook_give_up_at and await progress.requests.sleep_before_retry(webhook_backoff.next()):
                    continue
            _raise_if_refused(step, progress, error)
            if not (error.may_have_applied or isinstance(error, step.conflict_errors)):
                tries += 1
                if not await progress.requests.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    break
                continue
            stored, is_found = await _find_stored(step, progress), True
        tries += 1
        if stored is not None and step.accept(progress, stored, is_found=is_found):
            return
        if not await progress.requests.sleep_before_retry(backoff.next()):
            break
    raise progress.failed(step.name, str(last or "The write was undone by others"), transient=True) from last


WEBHOOK_WAIT_S: Final = 90.0
"""How long a write is repeated while the server cannot call an admission webhook. The manager of Kueue is away for less
than this when it is updated. The deadline of the submission applies, too."""
_WEBHOOK_UNAVAILABLE: Final = "The submission of %s waits, because the API server cannot call a webhook (%s): %s"


async def _find_stored(step: Step, progress: Progress) -> Object | None:
    try:
        return await step.find(progress)
    except ClusterError as error:
        raise progress.failed(step.name, str(error), transient=error.transient) from error


# Kubernetes 1.36 refuses a PodGroup while the API server does not see the Workload that it has just stored.
_NOT_READY: Final = ("not yet ready to handle request", "not found")
_MISSING_PERMISSION: Final = re.compile(r'User ".*" cannot ')
"""Part of the message of a request without the permission. A RoleBinding whose Role does not exist adds "not found".
Admission plugins and webhooks also answer 403, for example if a PriorityClass does not exist."""


def _raise_if_refused(step: Step, progress: Progress, error: ClusterError) -> None:
    if error.transient or error.may_have_applied or isinstance(error, step.conflict_errors):
        return
    if isinstance(error, Forbidden) and _is_not_ready(error.message):
        return
    if isinstance(error, NotFound) and (meaning := step.not_found(progress, error)) is not None:
        raise meaning from error
    advice = permission_advice(error)
    if isinstance(error, (BadRequest, Invalid)):
        advice = " ".join(map(str, refused_fields_of(error, progress.spec)))
    raise progress.failed(step.name, str(error), transient=_is_quota_exceeded(error), advice=advice) from error


def permission_advice(error: ClusterError) -> str:
    """Return what to do if the service account lacks a permission; empty if the request failed for another reason."""
    if isinstance(error, Forbidden) and _MISSING_PERMISSION.search(error.message):
        return "Give the service account this permission; see the documented Role"
    return ""


def refused_fields_of(error: ApiError, spec: GangSpec) -> tuple[Problem, ...]:
    """Return a problem for each field that the server refuses, at its place in the parameters, if it names any."""
    from airflow_provider_gangjobs.gang.validation.refused_fields import refused_fields

    return refused_fields(error.message, [*causes_in(error.details)], spec)


def _is_not_ready(message: str) -> bool:
    return any(text in message for text in _NOT_READY) and not _MISSING_PERMISSION.search(message)


def _is_quota_exceeded(error: ClusterError) -> bool:
    """Return whether a quota is exceeded. A retry may find free quota, but it does not find a missing permission."""
    return isinstance(error, Forbidden) and "exceeded quota" in error.message


# -- the Jobs, and what they own -------------------------------------------------------------------------------------


class CreateJob(Step, frozen=True):
    """POST the Job, suspended, with the pods' link to their group."""

    name = "create Job"
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
            raise progress.superseded(f"{progress.where} is being deleted")
        if job.is_dropped:
            raise progress.superseded(f"{progress.where} is kept from a deleted submission")
        if (job.record.submission_id, job.record.spec_hash) != (progress.attempt.submission_id, progress.spec.hash):
            raise conflict(progress.spec, progress.attempt.submission_id, job)
        if job.claim.id != progress.attempt.claim.id:
            raise RestartSubmission(
                f"Another try has created {progress.where} in the meantime, and is responsible for it"
            )
        if job.record.has_job_set != progress.has_job_set:
            raise RestartSubmission(f"{progress.where} was created at the same time, with or without a queue")
        progress.job, progress.adopted = stored, is_found
        # The dry run has found no queue, but the LocalQueue may have been created since.
        if job.record.roles and (error := given_queue_error(job)) is not None:
            raise error
        return True


def conflict(spec: GangSpec, submission_id: str, job: StoredGang) -> SubmissionConflict:
    """Return the error for a Job that exists and was created from another spec or submission."""
    return SubmissionConflict(
        ref=str(job.ref),
        uid=job.ref.uid,
        ours_hash=spec.hash,
        theirs_hash=job.record.spec_hash,
        fields=differing_fields(spec, job),
        submission_id=submission_id,
        theirs_submission_id=job.record.submission_id,
    )


class CreateOwned(Step, frozen=True):
    """POST one object that the Job owns, so that the deletion of the Job also deletes the object."""

    resource: Resource
    body: Callable[[Progress], Object | None]

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
            # Nothing waits for the deletion of this object.
            raise progress.superseded(f"{self.resource.kind} {metadata['name']} remains from another Job of this name")
        progress.owned[self.resource.kind, metadata["name"]] = stored
        return True

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        if progress.adopted:
            return progress.superseded(f"The cluster no longer serves {self.resource}")
        advice = "Discovery is repeated within ten minutes: try again then"
        return progress.failed(self.name, str(error), transient=True, advice=advice)


class _ChangeStep(Step, frozen=True):
    """PATCH an object that the submission has created, and that somebody may have deleted since."""

    lets_pods_run: ClassVar[bool] = True
    resource: ClassVar[Resource] = JOBS
    purpose: ClassVar[str] = "started"
    """What happens to the object, for messages."""

    @property
    def subject(self) -> str:
        """Which object is changed, for messages."""
        return self.resource.kind

    @abstractmethod
    def last_read(self, progress: Progress) -> Object:
        """Return the object as it was last read."""

    @abstractmethod
    def note(self, progress: Progress, stored: Object) -> bool:
        """Note an object that is not being deleted. Returns and raises what `accept` does."""

    async def find(self, progress: Progress) -> Object | None:
        metadata = self.last_read(progress)["metadata"]
        stored = await progress.requests.find(self.resource, metadata["name"])
        if stored is None or stored["metadata"]["uid"] != metadata["uid"]:
            raise self._is_gone(progress, "vanished")
        return stored

    def accept(self, progress: Progress, stored: Object, *, is_found: bool) -> bool:
        if "deletionTimestamp" in stored["metadata"]:
            raise self._is_gone(progress, "was deleted")
        return self.note(progress, stored)

    def not_found(self, progress: Progress, error: NotFound) -> Exception | None:
        return self._is_gone(progress, "vanished")

    def _is_gone(self, progress: Progress, how: str) -> exceptions.JobDeleted:
        return exceptions.JobDeleted(
            progress.where, "submitted", f"The {self.subject} {how} before it was {self.purpose}"
        )


_COMPARED_FIELDS: Final = ("uid", "generation", "annotations")


class StartJob(_ChangeStep, frozen=True):
    """PATCH the Job so that it may run, unless it was stopped, claimed, or deleted since it was last read.

    If a comparison of the patch fails, the server answers 422 (Invalid).
    Without a queue the patch resumes the Job. Otherwise it gives the Job to its queue. The patch compares the
    generation and the annotations of the Job. A change of the spec and a deletion increase the generation. The patch
    does not compare the resourceVersion, because the Job controller writes the status of each new Job at once,
    suspended or not.
    """

    queue: Queue
    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict, Invalid)

    @property
    def name(self) -> str:
        return self.queue.last_step_name

    def last_read(self, progress: Progress) -> Object:
        return progress.job

    def is_needed(self, progress: Progress) -> bool:
        queue = self._queue(progress)
        return not (progress.spec.is_kept_suspended and queue.name is None) and not queue.is_started(progress.stored)

    async def apply(self, progress: Progress) -> Object:
        metadata = progress.job["metadata"]
        placement = "" if str(progress.decision) == progress.stored.record.placement else str(progress.decision)
        found = Submitted(placement=placement, role_jobs=progress.role_uids or None)
        return await progress.requests.patch_job_if(
            metadata["name"],
            {f"/metadata/{name}": metadata[name] for name in _COMPARED_FIELDS},
            dict(pointers_of(self._queue(progress).start_patch(progress.stored, found))),
        )

    def note(self, progress: Progress, stored: Object) -> bool:
        job = read_job(stored)
        if is_stopped_by_cleanup(job):
            raise progress.superseded("the cleanup has stopped the Job in the meantime")
        if job.is_stopped:
            raise progress.failed(self.name, "The Job was stopped in the meantime", transient=True)
        progress.job = stored
        return self._queue(progress).is_started(job)

    def _queue(self, progress: Progress) -> Queue:
        """Return the queue that the Job was created for, or else the queue that the cluster has given to the Job.

        The connection may name another queue by now than when the Job was created.
        """
        is_known = progress.stored.record.queue is not None or self.queue.name is None
        return queue_of_job(progress.stored) if is_known else self.queue


class StartRole(_ChangeStep, frozen=True):
    """PATCH the Job of a role that is not the first one so that it may run, unless it was ended since it was read."""

    role: str
    conflict_errors: ClassVar[tuple[type[ClusterError], ...]] = (AlreadyExists, Conflict, Invalid)

    @property
    def name(self) -> str:
        return f"unsuspend the Job of role {self.role}"

    @property
    def subject(self) -> str:
        return f"Job of role {self.role}"

    def last_read(self, progress: Progress) -> Object:
        return progress.owned[JOBS.kind, role_job_name(progress.attempt.name, self.role)]

    def is_needed(self, progress: Progress) -> bool:
        return read_job(self.last_read(progress)).is_suspended

    async def apply(self, progress: Progress) -> Object:
        metadata = self.last_read(progress)["metadata"]
        return await start_role(progress.requests, metadata["name"], metadata["uid"], metadata["generation"])

    def note(self, progress: Progress, stored: Object) -> bool:
        job = read_job(stored)
        if not jobs_to_end(build_gang(job.view, (job.view,))):
            raise progress.failed(self.name, "The gang was stopped in the meantime", transient=True)
        progress.owned[JOBS.kind, stored["metadata"]["name"]] = stored
        return not job.is_suspended


def create_role(role: RoleRanks) -> CreateOwned:
    """Return the step that creates the Job of a role that is not the first one, suspended."""
    return CreateOwned(JOBS, lambda p: render_role(p.spec, role, p.attempt, p.decision, p.gang_scheduler, p.ref.uid))


CONTROLLER_TIMEOUT_S: Final = 60.0
"""A JobSet controller without other work creates the Jobs of a JobSet within a second."""
CONTROLLER_PAUSE_S: Final = 0.25


async def check_job_sets(progress: Progress) -> None:
    """Check that the cluster serves JobSets, before anything is created.

    Raises:
        GangUnsupported: the cluster does not serve JobSets in the version that is known.
    """
    try:
        await progress.requests.list(JOB_SETS, gang_selector(progress.attempt.name))
    except NotFound as error:
        raise GangUnsupported(
            f"the roles of a gang in a queue are one JobSet, and the cluster does not serve {JOB_SETS.api_version}",
            "Install JobSet, and enable its integration in Kueue, or submit the gang without a queue",
        ) from error


CHECK_JOB_SETS: Final = RepeatableStep(
    "check that the cluster serves JobSets", lambda progress: not progress.job, check_job_sets
)


CREATE_JOB_SET: Final = CreateOwned(
    JOB_SETS, lambda p: render_job_set(p.spec, p.attempt, p.decision, p.shape, p.ref.uid)
)
"""Creates the JobSet, suspended and without its queue."""


_FIND_JOBS: Final = "wait for the Jobs of the JobSet"


async def find_jobs_of_job_set(progress: Progress) -> None:
    """Wait until the JobSet controller has created the Job of each role, and note the Jobs in `progress`.

    Raises:
        SubmissionFailed: the Jobs do not exist in time.
    """
    requests = progress.requests
    give_up_at = requests.clock.monotonic() + CONTROLLER_TIMEOUT_S
    while True:
        gang = read_gang(progress.job, await requests.list(JOBS, gang_selector(progress.attempt.name)))
        if len(gang.jobs_with_pods) == len(gang.record.roles):
            uids = [one.metadata.uid for one in gang.jobs_with_pods]
            progress.role_uids = dict(zip((role.name for role in gang.record.roles), uids, strict=True))
            return
        if requests.clock.monotonic() >= give_up_at or not await requests.sleep_before_retry(CONTROLLER_PAUSE_S):
            cause = f"The JobSet controller has created {len(gang.jobs_with_pods)} of {len(gang.record.roles)} Jobs"
            advice = "Look at the events of the JobSet and at the log of the JobSet controller, then run the task again"
            raise progress.failed(_FIND_JOBS, cause, transient=True, advice=advice)


FIND_JOBS: Final = RepeatableStep(
    _FIND_JOBS, lambda progress: not progress.stored.is_submission_complete, find_jobs_of_job_set
)


class GiveJobSetToQueue(_ChangeStep, frozen=True):
    """PATCH the JobSet with the label of its queue, in the version that was read."""

    name = "give the JobSet to its queue"
    resource: ClassVar[Resource] = JOB_SETS
    purpose: ClassVar[str] = "given to its queue"

    def last_read(self, progress: Progress) -> Object:
        return progress.owned[JOB_SETS.kind, progress.attempt.name]

    def is_needed(self, progress: Progress) -> bool:
        return not _has_queue(self.last_read(progress))

    async def apply(self, progress: Progress) -> Object:
        metadata = self.last_read(progress)["metadata"]
        labels = {LABEL_KUEUE_QUEUE: progress.stored.record.queue}
        body = {"metadata": {"labels": labels}}
        return await patch_version(progress.requests.client, JOB_SETS, metadata, body)

    def note(self, progress: Progress, stored: Object) -> bool:
        progress.owned[JOB_SETS.kind, progress.attempt.name] = stored
        return _has_queue(stored)


def _has_queue(job_set: Object) -> bool:
    return LABEL_KUEUE_QUEUE in job_set["metadata"].get("labels", {})


async def require_uploads(progress: Progress) -> None:
    """Check that the uploads exist that the pods mount. A pod whose upload is missing would never start.

    Raises:
        InvalidGangSpec: an upload does not exist.
    """
    missing = [name for name in progress.spec.uploads if await progress.requests.find(CONFIGMAPS, name) is None]
    if missing:
        where = f"does not exist in namespace {progress.attempt.namespace}"
        raise InvalidGangSpec(
            tuple(Problem(f"uploads.{name}", where, "Upload the files to this namespace first") for name in missing)
        )


REQUIRE_UPLOADS: Final = RepeatableStep(
    "check the uploaded files", lambda progress: bool(progress.spec.uploads) and not progress.job, require_uploads
)
