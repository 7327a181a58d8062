"""The steps of a submission, as data.

Each step is one write that may be sent again, a look at what is there, and a test whether that is what
was wanted. `run_step` is the only place that decides between going on, looking, trying again and giving
up, so a lost reply, a crash and a second submitter are the same case: look at what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, ClusterError, Conflict, Forbidden, Invalid, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.exceptions import JobDeleted, SubmissionConflict
from airflow_provider_gangjobs.gang.labels import (
    ANNOTATION_GANG,
)
from airflow_provider_gangjobs.gang.render.job import render_job
from airflow_provider_gangjobs.gang.render.owner_references import is_owned_by
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.submission.adopt import differing_fields
from airflow_provider_gangjobs.submission.context import Progress, RestartSubmission
from airflow_provider_gangjobs.submission.ending import CLEANUP_HALT_REASON
from airflow_provider_gangjobs.submission.jobs import JobState, job_state
from airflow_provider_gangjobs.submission.requests import TRIES_MAX, Object

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.spec import GangSpec


class Step(Protocol):
    """One write of a submission."""

    @property
    def name(self) -> str:
        """What it does, for messages: `create PodGroup`."""

    def is_needed(self, progress: Progress) -> bool:
        """Whether there is anything to do."""

    async def apply(self, progress: Progress) -> Object:
        """Send the write once, and return what the server stored."""

    async def find(self, progress: Progress) -> Object | None:
        """What is there, or None."""

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Take over what is there. False if the write is still to be done.

        Raises:
            GangJobError, RestartSubmission: what is there stands in the way.
        """


async def run_step(step: Step, progress: Progress) -> None:
    """Afterwards the step is done, whoever did it.

    Raises:
        SubmissionFailed: the server refused it, or could not be asked for too long.
        GangJobError, RestartSubmission: what is there stands in the way.
    """
    if not step.is_needed(progress):
        return
    backoff = progress.requests.backoff()
    last: ClusterError | None = None
    for _ in range(TRIES_MAX):
        try:
            stored: Object | None = await step.apply(progress)
        except ClusterError as error:
            last = error
            _raise_if_refused(step, progress, error)
            if not (error.may_have_applied or _was_overtaken(step, error)):
                if not await progress.requests.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    break
                continue
            stored = await _find_stored(step, progress)
        if stored is not None and step.accept(progress, stored):
            return
        if not await progress.requests.sleep_before_retry(backoff.next()):
            break
    raise progress.failed(step.name, str(last or "it did not last"), transient=True) from last


def _was_overtaken(step: Step, error: ClusterError) -> bool:
    """Whether the object is there already, or not any more as it was seen."""
    return isinstance(error, (AlreadyExists, Conflict)) or (isinstance(step, Unsuspend) and isinstance(error, Invalid))


async def _find_stored(step: Step, progress: Progress) -> Object | None:
    try:
        return await step.find(progress)
    except ClusterError as error:
        raise progress.failed(step.name, str(error), transient=error.transient) from error


# 1.36 refuses a PodGroup while it does not see the Workload that it has just stored.
_NOT_READY_MESSAGES = ("not yet ready to handle request", "not found")


def _raise_if_refused(step: Step, progress: Progress, error: ClusterError) -> None:
    if error.transient or error.may_have_applied or _was_overtaken(step, error):
        return
    if isinstance(error, Forbidden) and any(text in error.message for text in _NOT_READY_MESSAGES):
        return
    if isinstance(error, NotFound) and isinstance(step, CreateOwned):
        _raise_not_served(step, progress, error)
    if isinstance(error, NotFound) and isinstance(step, Unsuspend):
        raise JobDeleted(progress.where, "submitted", "It vanished before it was let run") from error
    advice = "The service account needs this right; see the documented Role" if isinstance(error, Forbidden) else ""
    raise progress.failed(step.name, str(error), transient=_is_quota_exceeded(error), advice=advice) from error


def _raise_not_served(step: CreateOwned, progress: Progress, error: ClusterError) -> None:
    """The cluster was changed: begin anew by what it serves now, as soon as discovery has noticed."""
    if progress.adopted:
        raise RestartSubmission(f"{step.resource} is not served any more", min_attempt=progress.attempt.number + 1)
    advice = "What the cluster serves is asked again within ten minutes: try again then"
    raise progress.failed(step.name, str(error), transient=True, advice=advice) from error


def _is_quota_exceeded(error: ClusterError) -> bool:
    """A quota is freed again; a missing right is not given by waiting."""
    return isinstance(error, Forbidden) and "exceeded quota" in error.message


@dataclass(frozen=True)
class CreateJob:
    """POST the Job, suspended, its pods linked to their group."""

    name: str = "create Job"

    def is_needed(self, progress: Progress) -> bool:
        """Not if a Job was adopted."""
        return not progress.job

    async def apply(self, progress: Progress) -> Object:
        """Render and create it."""
        body = render_job(progress.spec, progress.attempt, progress.decision, progress.dialect)
        return await progress.requests.create(JOBS, body)

    async def find(self, progress: Progress) -> Object | None:
        """The Job of this name."""
        stored = await progress.requests.find(JOBS, progress.attempt.name)
        progress.adopted = stored is not None
        return stored

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Ours if it has our submission id and was made from the same parameters."""
        job = read_job(stored)
        if job.is_being_deleted:
            raise RestartSubmission(f"{progress.where} is being deleted", min_attempt=progress.attempt.number + 1)
        if job_state(job) is JobState.DROPPED:
            raise RestartSubmission(
                f"{progress.where} is kept from a deleted submission", min_attempt=progress.attempt.number + 1
            )
        if (job.trigger_id, job.spec_hash) != (progress.attempt.trigger_id, progress.spec.hash):
            raise conflict(progress.spec, progress.attempt.trigger_id, job)
        progress.job = stored
        return True


def conflict(spec: GangSpec, trigger_id: str, job: Job) -> SubmissionConflict:
    """The error of a Job that stands in the way of this spec."""
    return SubmissionConflict(
        ref=str(job.ref),
        uid=job.ref.uid,
        ours_hash=spec.hash,
        theirs_hash=job.spec_hash,
        fields=differing_fields(spec, job),
        trigger_id=trigger_id,
        theirs_trigger_id=job.trigger_id,
    )


@dataclass(frozen=True)
class CreateOwned:
    """POST one object that the Job owns, so that nothing is left when the Job is deleted."""

    resource: Resource
    body: Callable[[Progress], Object | None]
    on_created: Callable[[Progress, str], None] = lambda progress, uid: None
    """Told the uid of what was created or found."""

    @property
    def name(self) -> str:
        """By its kind."""
        return f"create {self.resource.kind}"

    def is_needed(self, progress: Progress) -> bool:
        """If there is a body for it."""
        return self.body(progress) is not None

    async def apply(self, progress: Progress) -> Object:
        """Create it."""
        return await progress.requests.create(self.resource, self.body(progress) or {})

    async def find(self, progress: Progress) -> Object | None:
        """The object of that name."""
        body = self.body(progress) or {}
        return await progress.requests.find(self.resource, body["metadata"]["name"])

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Ours if this very Job owns it. What an earlier bearer of the name left behind is not waited for."""
        metadata = stored["metadata"]
        if not is_owned_by(metadata, progress.ref.uid) or "deletionTimestamp" in metadata:
            reason = f"{self.resource.kind} {metadata['name']} is left from another Job of this name"
            raise RestartSubmission(reason, min_attempt=progress.attempt.number + 1)
        self.on_created(progress, metadata["uid"])
        return True


_COMPARED_FIELDS: Final = ("uid", "generation", "annotations")
_GANG_PATH: Final = "/metadata/annotations/" + ANNOTATION_GANG.replace("/", "~1")


@dataclass(frozen=True)
class Unsuspend:
    """PATCH the Job so that it runs, unless it was halted, claimed or deleted since it was last seen.

    Its generation (which a change of its spec or a deletion raises) and its annotations are compared, and not the
    resourceVersion: the Job controller writes the status of a Job as soon as it sees it, suspended or not.
    """

    name: str = "let the Job run"

    def is_needed(self, progress: Progress) -> bool:
        """Not if someone else starts it, and not if it was started."""
        left_to_others = progress.spec.keep_suspended or progress.shape.kueue_queue
        return not left_to_others and progress.stored.is_suspended

    async def apply(self, progress: Progress) -> Object:
        """Patch it. A comparison that fails is answered as 422."""
        metadata = progress.job["metadata"]
        return await progress.requests.patch_job_if(
            metadata["name"],
            {f"/metadata/{name}": metadata[name] for name in _COMPARED_FIELDS},
            {_GANG_PATH: str(progress.decision), "/spec/suspend": False},
        )

    async def find(self, progress: Progress) -> Object | None:
        """The Job of this name."""
        stored = await progress.requests.find(JOBS, progress.attempt.name)
        if stored is None or stored["metadata"]["uid"] != progress.ref.uid:
            raise JobDeleted(progress.where, "submitted", "It vanished before it was let run")
        return stored

    def accept(self, progress: Progress, stored: Object) -> bool:
        """Done if it runs."""
        job = read_job(stored)
        if job.is_being_deleted:
            raise JobDeleted(progress.where, "submitted", "It was deleted before it was let run")
        if job.halt_note == CLEANUP_HALT_REASON:
            raise RestartSubmission("it was tidied away in the meantime", min_attempt=progress.attempt.number + 1)
        if job.is_halted:
            raise progress.failed(self.name, "it was halted in the meantime", transient=True)
        progress.job = stored
        return not job.is_suspended
