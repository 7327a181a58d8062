"""StoredGang: what the Jobs of a gang say, read once for each look.

`read_job` reads a gang from its main Job alone, and `read_gang` from all of its Jobs. Both take views as the informers
keep them and dicts as a request returns them, with equal results. `build_gang` reads the record, the marks, and the
conditions; everything else is derived from them.

The Jobs of a gang with roles are read as one Job, so that every rule about a Job holds for the whole gang. The combined
Job has the metadata and `spec.suspend` of the main Job, the sums of the sizes and counters, and the condition of the
first row that applies:

    Jobs of the gang                                             condition of the combined Job
    -----------------------------------------------------------  ------------------------------
    one has failed, or is missing although the gang was started,
    and all others have ended                                    Failed
    one has failed, is going to fail, or is missing              FailureTarget
    all are complete                                             Complete
    all are complete or going to be                              SuccessCriteriaMet

The reason is that of the Job that failed first. A Job that ended by a deadline comes after the others, because the
follower ends the other Jobs of a gang by a deadline of zero.

The main Job of a JobSet has no pods, so its own end says nothing, unless the gang was stopped. When a Job has failed,
the JobSet controller deletes the others. A Job with another uid than the submission has noted was created again by the
controller, and is not the Job of the gang.

The patches here end Jobs. The pods of a stopped gang end and are harvested. The Job ends as failed, so its time to live
counts, and its ledger stays.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.record import Record, StoredClaim, Submitted, read_mark, read_record
from airflow_provider_gangjobs.gang.state.stopped import (
    BY_DELETION,
    REASON_JOB_DEADLINE,
    REASON_SUCCEEDED,
    STOPPED_DEADLINE_S,
    Stopped,
    Stopper,
    all_succeeded,
    end_by_main,
    end_patch,
    has_succeeded_by_main,
    mark_patch,
    parse_stopped,
    with_end_by_main,
)
from airflow_provider_gangjobs.kube.views import (
    Condition,
    JobSpec,
    JobStatus,
    JobView,
    end_condition,
    find_true_condition,
    parse_number,
    parse_spans,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.gang.spec import RoleRanks

_RUNNING: Final = "running"
"""`Phase.RUNNING`, which the rules of the phase derive from a gang."""
_GENERATION_OF_SECOND_CHANGE: Final = 3
"""`metadata.generation` begins with 1. The start of the Job is the first change, unless it is stopped before."""


def read_job(stored: JobView | Mapping[str, Any]) -> StoredGang:
    """Read a Job, from a view or from an object as the server sends it.

    Raises:
        msgspec.ValidationError: A field does not have the type that Kubernetes defines.
    """
    return build_gang(view_of(stored))


def view_of(stored: JobView | Mapping[str, Any]) -> JobView:
    """Return the view of a Job, with the end by its main containers if it is marked with one; raises as `read_job`."""
    return with_end_by_main(stored if isinstance(stored, JobView) else view(JobView, dict(stored)))


def build_gang(job: JobView, jobs: tuple[JobView, ...] = ()) -> StoredGang:
    """Read the record, the marks and the conditions of a gang.

    :param job: The Job of the gang, or its Jobs as one Job.
    :param jobs: The Jobs that `job` combines; see `StoredGang.jobs`.
    """
    metadata = job.metadata
    annotations = metadata.annotations
    reading = read_record(annotations.record)
    submitted = read_mark(Submitted, annotations.submitted)
    lacks_jobs = bool(reading.problem or (reading.record.roles and not jobs))
    true = {one.type: one for one in job.status.conditions if one.status == "True"}
    complete, failed, failing = true.get("Complete"), true.get("Failed"), true.get("FailureTarget")
    announced = true.get("SuccessCriteriaMet")
    if lacks_jobs:  # the end of the main Job is not the end of the gang, and its failure announces that end
        complete, failed, announced, failing = None, None, None, failing or failed
    return StoredGang(
        view=job,
        jobs=jobs,
        status=job.status,
        ref=GangRef(metadata.namespace, metadata.name, metadata.uid),
        attempt=parse_number(metadata.labels.attempt) or 0,
        installation=metadata.labels.installation or "",
        record=reading.record,
        problem=reading.problem,
        claim=read_mark(StoredClaim, annotations.claim),
        submitted=submitted,
        placement=submitted.placement or reading.record.placement,
        stopped=parse_stopped(annotations.stopped) if annotations.stopped is not None else None,
        lacks_jobs=lacks_jobs,
        complete_condition=complete,
        failed_condition=failed,
        failure_target_condition=failing,
        interim_condition=announced or failing,
        suspended_condition=true.get("Suspended"),
    )


def before_deletion(gang: StoredGang) -> StoredGang:
    """Return the Job as it was before a deletion marked it, so that an interrupted deletion is judged as before."""
    if gang.stopped is None or gang.stopped.code != BY_DELETION.code:
        return gang
    metadata = gang.view.metadata
    annotations = replace(metadata.annotations, stopped=None)
    return build_gang(replace(gang.view, metadata=replace(metadata, annotations=annotations)), gang.jobs)


class StoredGang(Struct, frozen=True, kw_only=True):
    """A gang at one moment, as its stored Jobs say. Two values are equal if all fields of the views are equal.

    The main Job of a gang with roles says nothing about the ends of its other Jobs. Unless `gang.state.stored_gang` has
    combined them, the gang counts as not ended.
    """

    view: JobView
    jobs: tuple[JobView, ...]
    """The Jobs that `view` combines, the main Job first; empty for a gang of one Job, and if they are not known."""
    status: JobStatus
    """`view.status`."""
    ref: GangRef
    attempt: int
    """Number of the attempt, from 0, also if the Job does not have the label."""
    installation: str
    """Id of the Airflow installation that made the gang; empty if the Job does not say."""
    record: Record
    """What the gang is; without any value if `problem` says why it cannot be read."""
    problem: str
    """Why the record cannot be read, as a part of a sentence; empty if it can."""
    claim: StoredClaim
    """Which task instance is responsible for the gang, and what it wants of the gang."""
    submitted: Submitted
    """What the last step of the submission has found."""
    placement: str
    """How the pods are placed, in the format of `gang.render.placement.PlacementDecision`."""
    stopped: Stopped | None
    """Who has stopped the gang, or ended it by its main containers, and why."""
    lacks_jobs: bool
    """The gang has further Jobs, and their state is not known; or its record does not say which Jobs it has."""
    complete_condition: Condition | None
    """The condition `Complete`, if it is true and the state of all Jobs of the gang is known."""
    failed_condition: Condition | None
    """The condition `Failed`, if it is true and the state of all Jobs of the gang is known."""
    failure_target_condition: Condition | None
    """The condition `FailureTarget`, if it is true: the Job is going to fail (KEP-3939), or a Job of a role has
    failed."""
    interim_condition: Condition | None
    """The condition that announces the end (`SuccessCriteriaMet` by KEP-3998, or `FailureTarget`). Pods may still
    run."""
    suspended_condition: Condition | None
    """The condition `Suspended`, if it is true: the Job controller has processed `spec.suspend`."""

    @property
    def main(self) -> StoredGang:
        """The gang as its main Job alone says, without the Jobs of the other roles."""
        return build_gang(self.jobs[0]) if self.jobs else self

    @property
    def jobs_with_pods(self) -> tuple[JobView, ...]:
        return self.jobs[1:] if self.record.has_job_set else self.jobs

    @property
    def queue(self) -> str | None:
        """Name of the Kueue queue that decides when the Job runs. Kueue then owns `spec.suspend`."""
        return self.view.metadata.labels.kueue_queue

    def holds_claim(self, claim: str) -> bool:
        """Return whether the task instance with this id, which is not empty, is responsible for the gang."""
        return bool(claim) and self.claim.id == claim

    # -- size and counters -------------------------------------------------------------------------------------------

    @property
    def parallelism(self) -> int:
        """`spec.parallelism`, with the server's default."""
        return 1 if self.view.spec.parallelism is None else self.view.spec.parallelism

    @property
    def ranks(self) -> int:
        """Number of ranks that run at the same time."""
        completions = self.view.spec.completions
        return self.parallelism if completions is None else min(self.parallelism, completions)

    @property
    def workers(self) -> int:
        return self.view.spec.completions or self.parallelism or 1

    @property
    def started_ranks(self) -> int:
        """Number of ranks that have started, by the counters of ready and of ended pods."""
        return self.status.ready + self.ended_ranks

    @property
    def ended_ranks(self) -> int:
        """Number of ranks that have started and ended, by the counters of the Job.

        As long as the Job goes on, it replaces pods that failed, and does not show of how many ranks they are. A Job
        that ends by a deadline also counts pods that never started, unless the gang was stopped while all ranks ran.
        """
        decided = self.failed_condition or self.failure_target_condition
        if decided is None and not self.is_stopped:
            return self.status.succeeded
        is_by_deadline = self.is_stopped or (decided is not None and decided.reason == REASON_JOB_DEADLINE)
        ran = self.stopped is not None and self.stopped.phase == _RUNNING
        return self.status.succeeded + (0 if is_by_deadline and not ran else self.status.failed)

    @property
    def has_pods_left(self) -> bool:
        """A pod may still run or be deleted, by the counters of the Job."""
        return self.lacks_jobs or self.status.active + self.status.terminating > 0

    # -- the start ---------------------------------------------------------------------------------------------------

    @property
    def created_at(self) -> datetime | None:
        """The time of the creation, by the server's clock."""
        return self.view.metadata.creation_timestamp

    @property
    def is_suspended(self) -> bool:
        """`spec.suspend`, which the Job controller may not have processed yet."""
        return self.view.spec.suspend

    @property
    def is_suspended_again(self) -> bool:
        """The Job is suspended, and its `spec` has changed at least twice, so somebody had started it."""
        return self.is_suspended and self.view.metadata.generation >= _GENERATION_OF_SECOND_CHANGE

    @property
    def has_run(self) -> bool:
        """The Job controller has started the Job at least once, or any known Job of the gang."""
        return any(_has_run(one.status) for one in (self.jobs_with_pods if self.jobs else (self.view,)))

    @property
    def is_submission_complete(self) -> bool:
        """Every object of the gang exists, as far as is known: a queue may start a Job before."""
        return self.submitted.is_queued or not (self.is_suspended or self.queue is not None)

    @property
    def never_ran(self) -> bool:
        """The Job is suspended and the Job controller never started it.

        False if this is unknown: for a Job in a queue, which Kueue may have stopped, and without the state of all Jobs.
        """
        return self.is_unstarted and not self.lacks_jobs

    @property
    def is_unstarted(self) -> bool:
        """As `never_ran`, but also true if the state of other Jobs of the gang is not known.

        The Jobs of the other roles are started before the main Job, and the Job controller may be about to start them.
        """
        has_run = self.has_run or self.is_suspended_again  # the Job controller removes startTime from a suspended Job
        may_run = any(not one.spec.suspend for one in self.jobs_with_pods)
        return self.is_suspended and not (has_run or may_run or self.queue is not None or self.submitted.is_queued)

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """The Job has completed or failed: it has no pod that runs, and gets no other pod."""
        return self.complete_condition is not None or self.failed_condition is not None

    @property
    def ended_at(self) -> datetime | None:
        """The time of the end, by the server's clock."""
        failed = self.failed_condition
        return self.status.completion_time or (failed.last_transition_time if failed else None)

    @property
    def is_stopped(self) -> bool:
        """The provider has ended the gang, or is ending it: no rank starts any more."""
        return self.stopped is not None and self.stopped.by is not Stopper.MAIN_CONTAINERS

    @property
    def ends_by_stop(self) -> bool:
        """The gang was stopped, and ends or has ended by that: nothing else had decided its end before."""
        decided = self.complete_condition or self.failed_condition or self.interim_condition
        return self.is_stopped and (decided is None or decided.reason == REASON_JOB_DEADLINE)

    @property
    def is_over(self) -> bool:
        """The gang has ended, was stopped, or is being deleted. Its pods may still be ending."""
        return self.is_ended or self.is_stopped or self.is_being_deleted

    @property
    def is_being_deleted(self) -> bool:
        """The deletion of the Job was requested, and finalizers keep the Job."""
        return self.view.metadata.deletion_timestamp is not None

    @property
    def is_delivered(self) -> bool:
        """The outcome was delivered to Airflow, or the gang runs on without its task."""
        return self.view.metadata.annotations.delivered is not None

    @property
    def is_dropped(self) -> bool:
        """The submission was deleted and the Job was kept. It is delivered, and no task instance is responsible."""
        return self.view.metadata.labels.dropped is not None


def _has_run(status: JobStatus) -> bool:
    counters = status.active, status.ready, status.succeeded, status.failed, status.terminating
    return status.start_time is not None or any(counters)


REASON_JOB_MISSING: Final = "JobOfRoleDeleted"


def read_gang(main_job: JobView | Mapping[str, Any], others: Iterable[JobView | Mapping[str, Any]]) -> StoredGang:
    """Read a gang from its main Job and from further Jobs. Jobs of other gangs are ignored.

    Without roles, this is the same as `read_job`, and also if the record cannot be read.

    :param others: All Jobs with the gang's label at one moment, with the main Job or without it.
    """
    gang = read_job(main_job)
    if not gang.record.roles:
        return gang
    uid = gang.ref.uid
    jobs = filter(is_role_job, map(view_of, others))
    if gang.record.has_job_set:
        return _combine_job_set(gang, [job for job in jobs if job.metadata.labels.gang_uid == uid])
    return _combine(gang, {job.metadata.labels.gang_role: job for job in jobs if job.metadata.is_owned_by(uid)})


def read_gangs(stored: Iterable[JobView | Mapping[str, Any]]) -> list[StoredGang]:
    """Read the gangs of some Jobs, which were selected by the gang's label.

    Jobs of roles whose main Job is missing are left out.
    """
    views = list(map(view_of, stored))
    of_roles: dict[tuple[str, str | None], list[JobView]] = {}
    for job in filter(is_role_job, views):
        of_roles.setdefault(_gang_of(job), []).append(job)
    return [read_gang(job, of_roles.get(_gang_of(job), ())) for job in views if not is_role_job(job)]


def is_role_job(job: JobView) -> bool:
    """Return whether the Job belongs to a role and is not the main Job of its gang.

    The main Job is that of the first role. In a JobSet the Jobs of all roles are role Jobs, also the first one.
    """
    return job.metadata.labels.gang_role is not None and job.metadata.labels.task is None


def _combine(main: StoredGang, by_role: Mapping[str | None, JobView]) -> StoredGang:
    """Return the Jobs of a gang with roles as one Job.

    :param main: The Job of the first role.
    :param by_role: The Jobs of the other roles, as far as they exist.
    """
    main_job, roles = main.view, main.record.roles
    found = [(roles[0], main_job), *((role, by_role[role.name]) for role in roles[1:] if role.name in by_role)]
    jobs = tuple(job for _, job in found)
    missing = [role.name for role in roles[1:] if role.name not in by_role]
    size = sum(role.size for role in roles)
    spec = replace(main_job.spec, parallelism=size, completions=size)
    metadata = replace(main_job.metadata, generation=max(job.metadata.generation for job in jobs))
    conditions = tuple(_conditions(found, missing if _is_started(main) else (), is_whole=not missing))
    status = _status(found, missing, conditions)
    return build_gang(JobView(metadata=metadata, spec=spec, status=status), jobs)


def _combine_job_set(main: StoredGang, stored: Sequence[JobView]) -> StoredGang:
    """Return the Jobs of a gang whose roles are a JobSet as one Job.

    :param stored: The Jobs of the JobSet, also those that replace a Job of the gang.
    """
    main_job, roles, noted = main.view, main.record.roles, main.submitted.role_jobs
    of_roles = ((job.metadata.labels.gang_role, job) for job in stored)
    by_role = {role: job for role, job in of_roles if role and (noted is None or noted.get(role) == job.metadata.uid)}
    found = [(role, by_role[role.name]) for role in roles if role.name in by_role]
    jobs = tuple(job for _, job in found)
    missing = [role.name for role in roles if role.name not in by_role]
    limits_s = [job.spec.active_deadline_seconds for job in jobs]
    size = sum(role.size for role in roles)
    spec = JobSpec(
        suspend=not _is_submitted(main) or any(map(_waits_suspended, jobs)),
        parallelism=size,
        completions=size,
        active_deadline_seconds=max(filter(None, limits_s), default=None),
    )
    queue = main.record.queue if main.submitted.is_queued else None
    metadata = replace(
        main_job.metadata,
        generation=max((job.metadata.generation for job in jobs), default=main_job.metadata.generation),
        labels=replace(main_job.metadata.labels, kueue_queue=queue),
    )
    conditions = tuple(_conditions_of_job_set(main, found, missing, is_gone=not stored))
    status = _status(found, missing, conditions)
    if has_succeeded_by_main(main_job):
        status = all_succeeded(status, size, conditions[-1])
    return build_gang(JobView(metadata=metadata, spec=spec, status=status), (main_job, *jobs))


def must_delete_job_set(gang: StoredGang) -> bool:
    """Return whether the JobSet of a gang that was stopped, is failing, or has ended by its main containers must be
    deleted, so that the gang ends.

    Otherwise the end of one Job makes the JobSet fail, and the JobSet controller deletes the other Jobs. That does not
    happen while the JobSet is suspended, and a Job that was created again is no part of the gang.
    """
    jobs = gang.jobs_with_pods
    if gang.record.has_job_set and has_succeeded_by_main(gang.jobs[0]):
        return any(one.metadata.deletion_timestamp is None for one in jobs)
    if not gang.record.has_job_set or gang.lacks_jobs:
        return False
    fails = any(_condition(one, kind) for one in jobs for kind in ("Failed", "FailureTarget"))
    is_gone = bool(jobs) and all(one.metadata.deletion_timestamp is not None for one in jobs)
    return not fails and not is_gone and (_lacks_roles(gang) or any(map(_waits_suspended, jobs)))


def jobs_to_end(gang: StoredGang) -> list[JobView]:
    """Return the Jobs of a gang with roles that have not ended and have no deadline of zero yet.

    The Jobs of a JobSet that lacks a Job are left out. They end with their JobSet, and so have no end of their own that
    would seem to be the cause.
    """
    return [
        one
        for one in (gang.jobs[:1] if gang.record.has_job_set and _lacks_roles(gang) else gang.jobs)
        if not end_condition(one) and one.spec.active_deadline_seconds != STOPPED_DEADLINE_S
    ]


def stop_patch(stopped: Stopped, gang: StoredGang) -> dict[str, Any]:
    """Return the merge patch that ends a Job permanently.

    The Job gets an activeDeadlineSeconds that has passed, so the Job controller deletes its pods, and lets it fail when
    they have ended; Kueue then takes its quota back. A suspended Job cannot fail, so it stays suspended; see
    `finish_patch`.

    :param gang: The Job as it was just read. The patch is sent only if the Job has not changed since.
    """
    spec: dict[str, Any] = {"activeDeadlineSeconds": STOPPED_DEADLINE_S}
    if gang.is_suspended or gang.status.start_time is None:
        spec["suspend"] = True
    return {"spec": spec} if gang.stopped is not None else {**mark_patch(stopped), "spec": spec}


def is_to_fail(gang: StoredGang) -> bool:
    """Return whether the main Job has yet to fail, because the gang was stopped or has no time left (`end_patch`).

    The Job controller lets the Job fail, unless somebody suspends the Job before; see `is_kept_from_failing`.
    """
    main_job = gang.main
    has_no_time = main_job.is_stopped or main_job.view.spec.active_deadline_seconds == STOPPED_DEADLINE_S
    return has_no_time and not (end_condition(main_job.view) or main_job.is_being_deleted)


def is_kept_from_failing(gang: StoredGang) -> bool:
    """Return whether the main Job has yet to fail and cannot, because it is suspended; see `finish_patch`."""
    return is_to_fail(gang) and gang.main.is_suspended


def finish_patch(gang: StoredGang, *, is_deactivated: bool) -> dict[str, Any]:
    """Return the merge patch that lets a stopped Job fail that `stop_patch` left suspended.

    The Job controller starts the Job and lets it fail at once, without a pod. `parallelism` stays: Kubernetes 1.36
    refuses to change it if the pods are a gang, and every release if the gang is that of `Job.spec.scheduling`.

    Kueue may suspend a Job in its queue again before it has failed, although its Workload is inactive, so the caller
    repeats the patch while `is_kept_from_failing`. If the Workload cannot be deactivated, the Job fails without a pod
    when Kueue starts it.

    :param is_deactivated: Whether Kueue's Workload of the Job was deactivated.
    """
    if gang.queue is not None and not is_deactivated:
        return {"spec": {"parallelism": 0}}
    return end_patch()


def is_stopped_by_cleanup(gang: StoredGang) -> bool:
    return gang.stopped is not None and gang.stopped.by is Stopper.CLEANUP


def is_ended_by_main(gang: StoredGang) -> bool:
    """Return whether the provider has ended the gang, because its main containers had ended and others had not."""
    return any(end_by_main(one) is not None for one in gang.jobs or (gang.view,))


def ttl_patch(gang: StoredGang) -> dict[str, Any] | None:
    """Return the merge patch with which the main Job of a gang with roles is deleted later; `None` if there is none.

    The time to live begins with the end of the main Job. A main Job without pods is complete with no completions, which
    can be set because its parallelism is 0, too.
    """
    ttl_s = gang.record.ttl_s
    if ttl_s is None:
        return None
    spec = {"ttlSecondsAfterFinished": ttl_s}
    if gang.record.has_job_set and not end_condition(gang.jobs[0]):
        spec |= {"activeDeadlineSeconds": STOPPED_DEADLINE_S} if gang.complete_condition is None else {"completions": 0}
    return {"spec": spec}


def _gang_of(job: JobView) -> tuple[str, str | None]:
    return job.metadata.namespace, job.metadata.labels.gang


def _lacks_roles(gang: StoredGang) -> bool:
    return len(gang.jobs_with_pods) < len(gang.record.roles)


def _waits_suspended(job: JobView) -> bool:
    return job.spec.suspend and not end_condition(job)


def _is_started(main: StoredGang) -> bool:
    """The main Job was started, which is the last step of a submission, and is not being deleted."""
    return _is_submitted(main) and not main.is_being_deleted


def _is_submitted(main: StoredGang) -> bool:
    """The submission is complete. Kueue may suspend the main Job of a JobSet after that, because it names no queue
    (`manageJobsWithoutQueueName`)."""
    return not main.is_suspended or main.submitted.is_queued


def _status(
    found: Sequence[tuple[RoleRanks, JobView]], missing: Sequence[str], conditions: tuple[Condition, ...]
) -> JobStatus:
    statuses = [job.status for _, job in found]
    starts = [status.start_time for status in statuses]
    ends = [status.completion_time for status in statuses]
    counters = ("active", "ready", "succeeded", "failed", "terminating")
    sums: dict[str, Any] = {name: sum(getattr(status, name) for status in statuses) for name in counters}
    return JobStatus(
        **sums,
        completed_indexes=",".join(filter(None, (_shifted(role, job) for role, job in found))),
        start_time=None if missing or None in starts else max(filter(None, starts), default=None),
        completion_time=None if missing or None in ends else max(filter(None, ends), default=None),
        conditions=conditions,
    )


def _shifted(role: RoleRanks, job: JobView) -> str:
    """Return the completed indexes of a Job as ranks in the gang, in the format of the Job controller."""
    spans = parse_spans(job.status.completed_indexes)
    ranks = ((span[0] + role.offset, span[-1] + role.offset) for span in spans)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranks)


def _conditions(
    found: Sequence[tuple[RoleRanks, JobView]], lost: Sequence[str], *, is_whole: bool
) -> Iterable[Condition]:
    if (suspended := _condition(found[0][1], "Suspended")) is not None:
        yield suspended
    jobs = [job for _, job in found]
    failure = _failure(found, lost)
    if failure is not None:
        yield replace(failure, type="Failed" if all(map(end_condition, jobs)) else "FailureTarget")
    elif is_whole and (success := _success(jobs)) is not None:
        yield success


def _conditions_of_job_set(
    main: StoredGang, found: Sequence[tuple[RoleRanks, JobView]], missing: Sequence[str], *, is_gone: bool
) -> Iterable[Condition]:
    if has_succeeded_by_main(main.view):
        # The JobSet is deleted then, and its pods run until it is gone.
        announced = _condition(main.view, "Complete") if is_gone else None
        yield announced or Condition("SuccessCriteriaMet", "True", REASON_SUCCEEDED)
        return
    jobs = [job for _, job in found]
    suspended = (_condition(job, "Suspended") for _, job in found if _waits_suspended(job))
    yield from next(([one] for one in suspended if one is not None), ())
    # The follower completes the main Job when all Jobs are complete.
    success = _condition(main.view, "Complete") or (None if missing else _success(jobs))
    if success is not None and success.type == "Complete":
        yield success
        return
    failure = _failure(found, ())
    has_ended = all(map(end_condition, jobs))
    if failure is None:
        # Nothing but the deletion of the JobSet ends the gang.
        has_ended = is_gone
        failure = _condition(main.view, "Failed") or _condition(main.view, "FailureTarget")
        if not main.is_stopped:
            failure = _failure((), missing) if _is_started(main) else None
    if failure is not None:
        yield replace(failure, type="Failed" if has_ended else "FailureTarget")
    elif success is not None:
        yield success


def _failure(found: Sequence[tuple[RoleRanks, JobView]], lost: Sequence[str]) -> Condition | None:
    failures = [
        replace(failed, message=f"Job {job.metadata.name} of role {role.name}: {failed.message}")
        for role, job in found
        for failed in (_condition(job, "Failed") or _condition(job, "FailureTarget"),)
        if failed is not None
    ]
    missing = [Condition("Failed", "True", REASON_JOB_MISSING, f"The Job of role {role} was deleted") for role in lost]
    ordered = sorted([*failures, *missing], key=lambda failed: (failed.reason == REASON_JOB_DEADLINE, _when(failed)))
    return next(iter(ordered), None)


def _condition(job: JobView, kind: str) -> Condition | None:
    return find_true_condition(job.status.conditions, kind)


def _success(jobs: Sequence[JobView]) -> Condition | None:
    """Return the condition of Jobs that are all complete, or are all going to be."""
    complete = [found for job in jobs if (found := _condition(job, "Complete"))]
    if len(complete) == len(jobs):
        return max(complete, key=_when)
    announced = [
        found for job in jobs if (found := _condition(job, "SuccessCriteriaMet") or _condition(job, "Complete"))
    ]
    if len(announced) < len(jobs):
        return None
    return Condition("SuccessCriteriaMet", "True", last_transition_time=max(map(_when, announced)))


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def _when(found: Condition) -> datetime:
    return found.last_transition_time or _NEVER
