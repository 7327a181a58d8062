"""The steps that create and start the Jobs of a gang, and create what the Jobs own, of which uploads must exist.

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

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from airflow_provider_gangjobs.cluster.client import patch_version
from airflow_provider_gangjobs.cluster.errors import AlreadyExists, ClusterError, Conflict, Invalid, NotFound
from airflow_provider_gangjobs.exceptions import (
    GangUnsupported,
    InvalidGangSpec,
    JobDeleted,
    Problem,
    SubmissionConflict,
)
from airflow_provider_gangjobs.gang.identity import gang_selector, is_owned_by, role_job_name
from airflow_provider_gangjobs.gang.queues import given_queue_error, queue_of_job
from airflow_provider_gangjobs.gang.record import Submitted
from airflow_provider_gangjobs.gang.render.job_manifest import render_job, render_job_set, render_role
from airflow_provider_gangjobs.gang.state.stopped import is_stopped_by_cleanup
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, build_gang, jobs_to_end, read_gang, read_job
from airflow_provider_gangjobs.jobs.requests import RestartSubmission, start_role
from airflow_provider_gangjobs.kube.names import pointers_of
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOB_SETS, JOBS, Resource
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.submission.adopt_or_submit import differing_fields
from airflow_provider_gangjobs.submission.step import RepeatableStep, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.queues import Queue
    from airflow_provider_gangjobs.gang.spec import GangSpec, RoleRanks
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.step import Progress


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

    def _is_gone(self, progress: Progress, how: str) -> JobDeleted:
        return JobDeleted(progress.where, "submitted", f"The {self.subject} {how} before it was {self.purpose}")


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
