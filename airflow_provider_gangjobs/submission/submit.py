"""Submit: one task, one live gang, however often and from wherever it is asked for.

The order works on every release, whatever gates the Job controller has, and nothing unowned ever exists:

1. List the task's Jobs: adopt one, or submit the next attempt.
2. POST the Job, suspended, and check that it kept the pods' group link.
3. POST Service and ConfigMap, Workload, PodGroup, owned by the Job.
4. PATCH the Job so that it runs.

A crash after any of these leaves at most one suspended Job, which the next call completes and whose
deletion takes everything along.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, JOBS, SERVICES
from airflow_provider_gangjobs.exceptions import GangJobError, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import Attempt, GangRef, SubmissionKey, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.render.dialects import find_dialect
from airflow_provider_gangjobs.gang.render.halting import halt_patch
from airflow_provider_gangjobs.gang.render.job import (
    manifest_of,
    render_files,
    render_service,
    requested_name,
    requested_namespace,
)
from airflow_provider_gangjobs.gang.render.policy import ONE_POD, Placement, PlacementDecision
from airflow_provider_gangjobs.gang.render.shape import Shape, shape_of
from airflow_provider_gangjobs.gang.selectors import task_selector
from airflow_provider_gangjobs.gang.spec import GangSpec, Reattach
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.submission.adopt import (
    Adopt,
    LostAttempt,
    Refuse,
    SubmissionAction,
    SubmitNew,
    TakenOver,
    decide_action,
    decide_action_after_loss,
)
from airflow_provider_gangjobs.submission.claim import claim_patch
from airflow_provider_gangjobs.submission.context import Progress, RestartSubmission
from airflow_provider_gangjobs.submission.dry_run import Preflight, RequireUploads
from airflow_provider_gangjobs.submission.ending import format_halt_note
from airflow_provider_gangjobs.submission.fallback_event import RecordFallbackEvent
from airflow_provider_gangjobs.submission.jobs import JobState, job_state
from airflow_provider_gangjobs.submission.placement import (
    CheckGangLink,
    WaitForWorkload,
    pod_group_step,
    select_placement,
    workload_step,
)
from airflow_provider_gangjobs.submission.requests import Api, Object, RetryingRequests
from airflow_provider_gangjobs.submission.steps import CreateJob, CreateOwned, Step, Unsuspend, conflict, run_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources

log = logging.getLogger(__name__)

TAKEN_OVER: Final = "Another try of the task answers for it now"
ROUNDS_MAX: Final = 8
"""How often the list of Jobs is read again before a task's Jobs are said to change too fast."""


class SubmissionState(StrEnum):
    """Where the gang stands when the submission returns."""

    RUNNING = "running"
    """It was let run; whether its pods are placed is another question."""
    SUSPENDED = "suspended"
    """Someone else starts it: Kueue, or the user who asked for that."""
    SUCCEEDED = "succeeded"
    """It had ended well before, and nobody has been told yet."""
    FAILED = "failed"
    """It had failed before, and nobody has looked why."""


@dataclass(frozen=True)
class Submission:
    """The one live gang of a task."""

    ref: GangRef
    attempt: int
    workers: int
    """The number of ranks."""
    trigger_id: str
    decision: str
    """As in the Job's annotation: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    adopted: bool
    """Whether it had been submitted before, by an earlier try or by someone racing."""
    state: SubmissionState
    requests: int
    """How many it took."""
    disruptions: int = 0
    """How many attempts in a row were lost to disruptions before this one."""
    notes: tuple[str, ...] = ()
    """Guarantees that were asked for with `preferred` and are not there; for the log."""


async def submit(
    client: Api,
    spec: GangSpec,
    *,
    key: TaskKey,
    claim: str,
    discovered: DiscoveredResources,
    reattach: Reattach | str = Reattach.RUNNING_OR_SUCCEEDED,
    namespace: str = "default",
    dry_run: bool = False,
    lost: LostAttempt | None = None,
    return_failed: bool = False,
    clock: Clock | None = None,
) -> Submission:
    """Create the task's gang, or adopt the one that is there. Safe to repeat, to interrupt and to race.

    `claim` is the id of who answers for the gang from now on. `namespace` is where it goes if the spec
    does not say. With `dry_run` the server judges the Job by a dry run before anything is created.
    `lost` is the attempt that another one is to follow, of the same try. With `return_failed` a last attempt that has
    failed while nobody looked is returned, once, instead of being followed by another one.

    Raises:
        InvalidGangSpec: the request is wrong; nothing was asked.
        GangUnsupported: a gang is required and cannot be had; nothing is left.
        SubmissionConflict: a live Job of this task was made from other parameters.
        SubmissionFailed: the server refused a step (nothing that runs is left), or could not be reached; or the
            attempt that was lost is another try's by now.
        JobDeleted: someone deleted the Job during the submission, so it was not wanted any more.
    """
    require_valid(spec, reattach=reattach)
    policy = (
        partial(decide_action, reattach=Reattach(reattach), claim=claim, return_failed=return_failed)
        if lost is None
        else partial(decide_action_after_loss, lost=lost, claim=claim)
    )
    return await submit_by(
        client,
        spec,
        SubmissionRequest(key, claim, policy, dry_run=dry_run, disruptions=lost.disruptions if lost else 0),
        discovered=discovered,
        namespace=namespace,
        clock=clock,
    )


class ActionPolicy(Protocol):
    """What to do, given the Jobs that are there; see `adopt.decide_action`."""

    def __call__(self, jobs: Sequence[Job], /, *, spec_hash: str, min_attempt: int) -> SubmissionAction: ...


@dataclass(frozen=True)
class SubmissionRequest:
    """What is submitted, but for the gang itself."""

    key: SubmissionKey
    claim: str
    decide: ActionPolicy
    dry_run: bool = False
    keep_failed: bool = False
    """Leave the Job of a submission that can never be completed, halted, as the record of why."""
    disruptions: int = 0
    """What a new attempt has behind it."""


async def submit_by(
    client: Api,
    spec: GangSpec,
    request: SubmissionRequest,
    *,
    discovered: DiscoveredResources,
    namespace: str,
    clock: Clock | None = None,
) -> Submission:
    """As `submit`, for any key and any rule of adoption. Expects a valid spec."""
    # A copy also where nothing changes: what is remembered of it holds for this submission only.
    spec = replace(spec, manifest=manifest_of(spec) if spec.manifest is not None else None)
    requests = RetryingRequests(client, requested_namespace(spec) or namespace, clock=clock)
    task = _SubmissionRun(requests, spec, shape_of(spec, manifest_of(spec)), request, discovered)
    min_attempt, reason, backoff = 0, "", requests.backoff()
    try:
        for _ in range(ROUNDS_MAX):
            try:
                return await task.round(min_attempt)
            except RestartSubmission as again:
                min_attempt, reason = max(min_attempt, again.min_attempt), str(again)
                log.info("submitting again: %s", reason)
            if not await requests.sleep_before_retry(backoff.next()):
                break
    except ClusterError as error:
        raise SubmissionFailed(task.where, "find the task's Jobs", str(error), error.transient) from error
    raise SubmissionFailed(task.where, "settle on a Job", reason)


@dataclass(frozen=True)
class _SubmissionRun:
    """What stays the same over the rounds of one submission."""

    requests: RetryingRequests
    spec: GangSpec
    shape: Shape
    request: SubmissionRequest
    discovered: DiscoveredResources

    @property
    def where(self) -> str:
        return f"{self.requests.namespace}/{requested_name(self.spec) or self.request.key.slug}"

    async def round(self, min_attempt: int) -> Submission:
        """Look at what is there, and go on from it."""
        listed = await self.requests.list(JOBS, task_selector(self.request.key.digest))
        stored = {job["metadata"]["uid"]: job for job in listed}
        action = self.request.decide(
            [read_job(job) for job in listed], spec_hash=self.spec.hash, min_attempt=min_attempt
        )
        match action:
            case Refuse(job):
                raise conflict(self.spec, job.trigger_id or "", job)
            case TakenOver(job):
                raise SubmissionFailed(str(job.ref), "submit it again", TAKEN_OVER)
            case Adopt(job, superseded):
                progress = self._progress_of_adopted_job(await self._claim(stored[job.ref.uid]))
                unfinished = job_state(job) is JobState.LIVE and progress.stored.is_suspended
            case SubmitNew(number, superseded):
                progress, unfinished = self._progress_of_new_attempt(number), True
        for old in superseded:
            await self._remove_superseded(old, next(job for job in listed if job["metadata"]["uid"] == old.ref.uid))
        if unfinished:
            await self._complete(progress)
        return self._submission(progress)

    async def _remove_superseded(self, old: Job, seen: Object) -> None:
        """Delete a live gang that gives way, unless it is claimed, let run, or ended by now: then look again."""

        def gives_way(stored: Object) -> bool:
            job = read_job(stored)
            was_started = old.never_ran and not job.never_ran
            return job_state(job) is JobState.LIVE and job.claim == old.claim and not was_started

        ref = old.ref
        removal = await self.requests.remove_if(JOBS, ref.name, ref.uid, gives_way, seen=seen)
        if removal.kept is not None and not read_job(removal.kept).is_being_deleted:
            raise RestartSubmission(f"Job {ref.name} changed before it was deleted")

    def _progress_of_new_attempt(self, number: int) -> Progress:
        decision, dialect = select_placement(self.spec, self.shape, self.discovered, where=self.where)
        attempt = build_attempt(
            self.request.key,
            namespace=self.requests.namespace,
            number=number,
            claim=self.request.claim,
            name=requested_name(self.spec),
            disruptions=self.request.disruptions,
        )
        progress = Progress(
            self.requests, self.spec, self.shape, attempt, decision, dialect, dry_run=self.request.dry_run
        )
        if decision.placement is Placement.BASIC and decision.detail != ONE_POD:
            progress.fall_back(decision.detail)
        return progress

    def _progress_of_adopted_job(self, job: Object) -> Progress:
        """Goes on as the Job was begun, also if the cluster has learned something since."""
        begun = read_job(job)
        decision = PlacementDecision.parse(begun.decision or "off")
        attempt = Attempt(
            namespace=self.requests.namespace,
            name=begun.ref.name,
            digest=self.request.key.digest,
            number=begun.attempt_number,
            trigger_id=begun.trigger_id or "",
            claim=self.request.claim,
            task=self.request.key.to_json(),
        )
        dialect = find_dialect(decision.detail) if decision.placement is Placement.GANG else None
        return Progress(self.requests, self.spec, self.shape, attempt, decision, dialect, job=job, adopted=True)

    async def _claim(self, job: Object) -> Object:
        if read_job(job).holds_claim(self.request.claim):
            return job
        try:
            return await self.requests.patch_job(job["metadata"]["name"], claim_patch(job, self.request.claim))
        except ClusterError as error:
            if isinstance(error, (Conflict, NotFound)) or error.transient or error.may_have_applied:
                raise RestartSubmission(
                    f"Job {job['metadata']['name']} changed while it was adopted: {error}"
                ) from error
            raise

    async def _complete(self, progress: Progress) -> None:
        """Carry out what is left to do. What can be completed is left for the next call if a step fails.

        What never can is deleted, or kept as the record of why.
        """
        try:
            for step in steps_of(progress):
                await run_step(step, progress)
        except (RestartSubmission, GangJobError) as error:
            cannot_complete = isinstance(error, RestartSubmission) or not error.retryable
            if cannot_complete and progress.job and progress.stored.is_suspended:
                if self.request.keep_failed and isinstance(error, GangJobError):
                    patch = halt_patch(format_halt_note(error), queued=progress.stored.is_queued_by_kueue)
                    await self.requests.mark_job(progress.ref, patch)
                else:
                    await self._delete_incomplete_job(progress)
            raise

    async def _delete_incomplete_job(self, progress: Progress) -> None:
        """Delete the Job that can never be completed, unless someone else has let it run or answers for it by now."""

        def is_ours(stored: Object) -> bool:
            job = read_job(stored)
            return job.is_suspended and job.holds_claim(self.request.claim)

        await self.requests.remove_if(JOBS, progress.ref.name, progress.ref.uid, is_ours)

    def _submission(self, progress: Progress) -> Submission:
        job = progress.stored
        return Submission(
            ref=progress.ref,
            attempt=progress.attempt.number,
            workers=self.shape.size,
            trigger_id=progress.attempt.trigger_id,
            decision=str(progress.decision),
            adopted=progress.adopted,
            state=_submission_state(job),
            requests=self.requests.sent,
            disruptions=job.disruptions,
            notes=tuple(progress.notes),
        )


def _submission_state(job: Job) -> SubmissionState:
    if job.complete is not None:
        return SubmissionState.SUCCEEDED
    if job.failed is not None:
        return SubmissionState.FAILED
    return SubmissionState.SUSPENDED if job.is_suspended else SubmissionState.RUNNING


def steps_of(progress: Progress) -> Sequence[Step]:
    """Everything from nothing to a running gang, in order. Each is skipped where there is nothing for it to do."""
    group = (workload_step(progress.dialect), pod_group_step(progress.dialect)) if progress.dialect else ()
    return (
        RequireUploads(),
        Preflight(),
        CreateJob(),
        CheckGangLink(),
        CreateOwned(SERVICES, lambda p: render_service(p.spec, p.attempt, p.ref.uid)),
        CreateOwned(CONFIGMAPS, lambda p: render_files(p.spec, p.attempt, p.ref.uid)),
        *group,
        WaitForWorkload(),
        Unsuspend(),
        RecordFallbackEvent(),
    )
