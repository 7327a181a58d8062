"""StoredGang: what the Jobs of a gang say, read once for each look.

`read_job` reads a gang from its main Job alone, and `gang.state.gang_jobs.read_gang` from all of its Jobs. Both take
views as the informers keep them and dicts as a request returns them, with equal results. `build_gang` reads the record,
the marks, and the conditions; everything else is derived from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.marks import StoredClaim, Submitted, read_mark
from airflow_provider_gangjobs.gang.record import Record, read_record
from airflow_provider_gangjobs.gang.state.pods import parse_number
from airflow_provider_gangjobs.gang.state.stopped import (
    REASON_JOB_DEADLINE,
    Stopped,
    Stopper,
    parse_stopped,
    with_end_by_main,
)
from airflow_provider_gangjobs.kube.views import Condition, JobStatus, JobView, view

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


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


class StoredGang(Struct, frozen=True, kw_only=True):
    """A gang at one moment, as its stored Jobs say. Two values are equal if all fields of the views are equal.

    The main Job of a gang with roles says nothing about the ends of its other Jobs. Unless `gang.state.gang_jobs` has
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

        A Job that ends by a deadline also counts pods that never started, unless the gang was stopped while all ranks
        ran.
        """
        decided = self.failed_condition or self.failure_target_condition
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
        """As `never_ran`, but also true if the state of other Jobs of the gang is not known."""
        has_run = self.has_run or self.is_suspended_again  # the Job controller removes startTime from a suspended Job
        return self.is_suspended and not (has_run or self.queue is not None or self.submitted.is_queued)

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
