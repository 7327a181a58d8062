"""StoredGang: all information about a gang that its stored Jobs contain, read in one place.

`read_job` reads a gang from its main Job alone, and `gang.state.gang_jobs.read_gang` from all of its Jobs. Both take
views as the informers keep them and dicts as a request returns them, with equal results. Each fact (whether the gang is
suspended, which task instance is responsible for it) is one property.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.marks import AssemblyBaseline, StoredClaim, Submitted, read_mark
from airflow_provider_gangjobs.gang.record import Record, read_record
from airflow_provider_gangjobs.gang.spec import SUSPEND_FIELD, OnFinish, OnKill, WaitUntil
from airflow_provider_gangjobs.gang.state.pods import deletion_requested_at, parse_number
from airflow_provider_gangjobs.gang.state.stopped import (
    REASON_JOB_DEADLINE,
    Stopped,
    Stopper,
    parse_stopped,
    with_end_by_main,
)
from airflow_provider_gangjobs.kube.views import Condition, JobStatus, JobView, find_true_condition, view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.roles import RoleRanks
    from airflow_provider_gangjobs.kube.views import JobAnnotations, JobStatus


_RUNNING: Final = "running"
"""`Phase.RUNNING`, which the rules of the phase derive from a gang."""
_GENERATION_OF_SECOND_CHANGE: Final = 3
"""`metadata.generation` begins with 1. The start of the Job is the first change, unless it is stopped before."""


def read_job(stored: JobView | Mapping[str, Any]) -> StoredGang:
    """Read a Job, from a view or from an object as the server sends it.

    Raises:
        msgspec.ValidationError: A field does not have the type that Kubernetes defines.
    """
    return StoredGang(with_end_by_main(stored if isinstance(stored, JobView) else view(JobView, dict(stored))))


class StoredGang(Struct, frozen=True):
    """A gang at one moment, as its stored Jobs say. Two values are equal if all fields of the views are equal.

    The main Job of a gang with roles says nothing about the ends of its other Jobs. Unless `gang.state.gang_jobs` has
    combined them, the gang counts as not ended.
    """

    view: JobView
    jobs: tuple[JobView, ...] = ()
    """The Jobs that `view` combines, the main Job first; empty for a gang of one Job, and if they are not known."""

    @property
    def main(self) -> StoredGang:
        """The gang as its main Job alone says, without the Jobs of the other roles."""
        return StoredGang(self.jobs[0]) if self.jobs else self

    # -- identity ----------------------------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """What the gang is; without any value if `problem` says why it cannot be read."""
        return read_record(self._annotations.record).record

    @property
    def problem(self) -> str:
        """Why the record cannot be read, as a part of a sentence; empty if it can."""
        return read_record(self._annotations.record).problem

    @property
    def submitted(self) -> Submitted:
        """What the last step of the submission has found."""
        return read_mark(Submitted, self._annotations.submitted)

    @property
    def ref(self) -> GangRef:
        metadata = self.view.metadata
        return GangRef(metadata.namespace, metadata.name, metadata.uid)

    @property
    def generation(self) -> int:
        """`metadata.generation`, the version of the spec, from 1; 0 if the object does not have it."""
        return self.view.metadata.generation

    @property
    def attempt(self) -> int | None:
        """Number of the attempt, from 0."""
        return parse_number(self.view.metadata.labels.attempt)

    @property
    def attempt_number(self) -> int:
        """As `attempt`, with 0 for a label that is missing."""
        return self.attempt or 0

    @property
    def submission_id(self) -> str:
        return self.record.submission_id

    @property
    def task_digest(self) -> str | None:
        """Value of `LABEL_TASK`."""
        return self.view.metadata.labels.task

    @property
    def installation(self) -> str:
        """Id of the Airflow installation that made the gang; empty if the Job does not say."""
        return self.view.metadata.labels.installation or ""

    @property
    def task_key(self) -> TaskKey | None:
        """The task of the gang; `None` for the id of a client."""
        return self.record.task

    @property
    def on_kill(self) -> OnKill | None:
        """What happens to the live gang of a task that has ended."""
        policies = self.stored_claim.policies
        return policies.on_kill if policies else None

    @property
    def on_finish(self) -> OnFinish | None:
        """What happens to the Job after its outcome was delivered."""
        policies = self.stored_claim.policies
        return policies.on_finish if policies else None

    @property
    def outlives_task(self) -> bool:
        """The gang runs on after its task has succeeded, because the task waits only for its start."""
        policies = self.stored_claim.policies
        return policies is not None and policies.wait_until is not WaitUntil.ENDED

    @property
    def spec_hash(self) -> str:
        """Hash of the parameters from which the Job was made."""
        return self.record.spec_hash

    @property
    def field_digests(self) -> dict[str, str]:
        """Digest of each parameter that was given at the submission."""
        return self.record.fields

    @property
    def decision(self) -> str:
        """How the pods are placed, in the format of `gang.render.placement.PlacementDecision`."""
        return self.submitted.placement or self.record.placement

    @property
    def requests(self) -> dict[str, str]:
        """What all ranks request together: resource -> quantity; empty if the Job does not say."""
        return self.record.requests

    @property
    def disruptions(self) -> int:
        """Number of consecutive attempts before this one that ended by a disruption."""
        return self.record.disruptions

    @property
    def restarts_max(self) -> int | None:
        """How often the programs of the ranks may be restarted in their pods; `None` without supervisors."""
        return self.record.restarts

    @property
    def restarts_alone(self) -> bool:
        """Each rank is restarted alone, and has as many restarts."""
        return self.record.restarts_alone

    @property
    def active_deadline_s(self) -> int | None:
        return self.view.spec.active_deadline_seconds

    @property
    def time_limit(self) -> str:
        """The parameters of the task from which the provider computed `active_deadline_s`, if it did."""
        return self.stored_claim.time_limit

    # -- roles -------------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[RoleRanks, ...]:
        """The roles of the gang in their order; empty for a gang of one Job."""
        return self.record.roles

    @property
    def has_roles(self) -> bool:
        """The gang has one Job for each role."""
        return bool(self.record.roles)

    @property
    def has_job_set(self) -> bool:
        """The Jobs of the roles are those of a JobSet, which the main Job owns."""
        return self.has_roles and self.requested_queue is not None

    @property
    def jobs_with_pods(self) -> tuple[JobView, ...]:
        return self.jobs[1:] if self.has_job_set else self.jobs

    @property
    def queued_uid(self) -> str:
        """UID of the object that Kueue admits: the JobSet of the roles, if it is known, or else the Job."""
        controllers = (owner for one in self.jobs_with_pods for owner in one.metadata.owner_references)
        job_sets = (owner.uid for owner in controllers if self.has_job_set and owner.controller)
        return next(job_sets, self.ref.uid)

    @property
    def lacks_jobs(self) -> bool:
        """The gang has further Jobs, and their state is not known; or its record does not say which Jobs it has."""
        return (self.has_roles and not self.jobs) or bool(self.problem)

    # -- ownership ---------------------------------------------------------------------------------------------------

    @property
    def stored_claim(self) -> StoredClaim:
        return read_mark(StoredClaim, self._annotations.claim)

    @property
    def claim(self) -> str:
        """Id of the task instance that is responsible for the gang; empty if none is."""
        return self.stored_claim.id

    @property
    def max_tries(self) -> int | None:
        """`max_tries` of the task instance that last held the claim."""
        return self.stored_claim.max_tries

    def holds_claim(self, claim: str) -> bool:
        """Return whether the task instance with this id, which is not empty, is responsible for the gang."""
        return bool(claim) and self.claim == claim

    @property
    def is_dropped(self) -> bool:
        """The submission was deleted and the Job was kept. It is delivered, and no task instance is responsible."""
        return self.view.metadata.labels.dropped is not None

    # -- size and counters -------------------------------------------------------------------------------------------

    @property
    def parallelism(self) -> int:
        """`spec.parallelism`, with the server's default."""
        return 1 if self.view.spec.parallelism is None else self.view.spec.parallelism

    @property
    def completions(self) -> int | None:
        return self.view.spec.completions

    @property
    def ranks(self) -> int:
        """Number of ranks that run at the same time."""
        completions = self.completions
        return self.parallelism if completions is None else min(self.parallelism, completions)

    @property
    def workers(self) -> int:
        return self.completions or self.parallelism or 1

    @property
    def status(self) -> JobStatus:
        return self.view.status

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
        decided = self.failure_condition
        is_by_deadline = self.is_stopped or (decided is not None and decided.reason == REASON_JOB_DEADLINE)
        ran = self.stopped is not None and self.stopped.phase == _RUNNING
        return self.status.succeeded + (0 if is_by_deadline and not ran else self.status.failed)

    @property
    def has_pods_left(self) -> bool:
        """A pod may still run or be deleted, by the counters of the Job."""
        return self.lacks_jobs or self.status.active + self.status.terminating > 0

    # -- times, by the server's clock --------------------------------------------------------------------------------

    @property
    def created_at(self) -> datetime | None:
        return self.view.metadata.creation_timestamp

    @property
    def started_at(self) -> datetime | None:
        """Time at which the Job controller last started or resumed the Job."""
        return self.status.start_time

    @property
    def ended_at(self) -> datetime | None:
        failed = self.failed_condition
        return self.status.completion_time or (failed.last_transition_time if failed else None)

    @property
    def deletion_requested_at(self) -> datetime | None:
        return deletion_requested_at(self.view.metadata)

    @property
    def delivered_at(self) -> datetime | None:
        try:
            return datetime.fromisoformat(self._annotations.delivered or "")
        except ValueError:
            return None

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def complete_condition(self) -> Condition | None:
        """The condition `Complete`, if it is true and the state of all Jobs of the gang is known."""
        return None if self.lacks_jobs else find_true_condition(self.status.conditions, "Complete")

    @property
    def failed_condition(self) -> Condition | None:
        """The condition `Failed`, if it is true and the state of all Jobs of the gang is known."""
        return None if self.lacks_jobs else find_true_condition(self.status.conditions, "Failed")

    @property
    def is_ended(self) -> bool:
        """The Job has completed or failed: it has no pod that runs, and gets no other pod."""
        return self.complete_condition is not None or self.failed_condition is not None

    @property
    def is_over(self) -> bool:
        """The gang has ended, was stopped, or is being deleted. Its pods may still be ending."""
        return self.is_ended or self.is_stopped or self.is_being_deleted

    @property
    def failure_target_condition(self) -> Condition | None:
        """The condition `FailureTarget`, if it is true: the Job is going to fail (KEP-3939), or a Job of a role has
        failed."""
        found = find_true_condition(self.status.conditions, "FailureTarget")
        return found or (find_true_condition(self.status.conditions, "Failed") if self.lacks_jobs else None)

    @property
    def failure_condition(self) -> Condition | None:
        """The condition that says that the Job has failed, or is going to fail."""
        return self.failed_condition or self.failure_target_condition

    @property
    def interim_condition(self) -> Condition | None:
        """The condition that announces the end (`SuccessCriteriaMet` by KEP-3998, or `FailureTarget`). Pods may still
        run."""
        announced = None if self.lacks_jobs else find_true_condition(self.status.conditions, "SuccessCriteriaMet")
        return announced or self.failure_target_condition

    @property
    def is_being_deleted(self) -> bool:
        """The deletion of the Job was requested, and finalizers keep the Job."""
        return self.view.metadata.deletion_timestamp is not None

    @property
    def is_delivered(self) -> bool:
        """The outcome was delivered to Airflow, or the gang runs on without its task."""
        return self._annotations.delivered is not None

    @property
    def deleted_by(self) -> str:
        """Who is about to delete the gang on purpose."""
        return self._annotations.deleted_by or ""

    @property
    def is_stopped(self) -> bool:
        """The provider has ended the gang, or is ending it: no rank starts any more."""
        return self.stopped is not None and self.stopped.by is not Stopper.MAIN_CONTAINERS

    @property
    def stopped(self) -> Stopped | None:
        """Who has stopped the gang, and why."""
        value = self._annotations.stopped
        return parse_stopped(value) if value is not None else None

    @property
    def is_ended_by_main(self) -> bool:
        """The provider has ended the gang, because its main containers had ended and other containers had not."""
        marks = (StoredGang(one).stopped for one in self.jobs or (self.view,))
        return any(mark.by is Stopper.MAIN_CONTAINERS for mark in marks if mark is not None)

    @property
    def is_ending_by_stop(self) -> bool:
        """The gang was stopped, before the Job controller had decided its end."""
        decided = self.interim_condition
        return self.is_stopped and not self.is_ended and (decided is None or decided.reason == REASON_JOB_DEADLINE)

    @property
    def failed_by_stop(self) -> bool:
        """The Job fails, or has failed, by the deadline that a stop has set."""
        decided = self.failure_condition
        return self.is_stopped and decided is not None and decided.reason == REASON_JOB_DEADLINE

    @property
    def is_end_caused_by_stop(self) -> bool:
        """The gang was stopped, and ends or has ended by that."""
        return self.is_ending_by_stop or self.failed_by_stop

    @property
    def failure_cause(self) -> tuple[str, str] | None:
        """Reason and message of the failure or of the stop; `None` if the gang has not failed and was not stopped."""
        failed = self.failure_condition
        if failed is not None and not self.failed_by_stop:
            return failed.reason, failed.message
        return (self.stopped.code, self.stopped.text) if self.stopped is not None and self.is_stopped else None

    @property
    def is_suspended(self) -> bool:
        """`spec.suspend`, which the Job controller may not have processed yet."""
        return self.view.spec.suspend

    @property
    def is_suspended_again(self) -> bool:
        """The Job is suspended, and its `spec` has changed at least twice, so somebody had started it."""
        return self.is_suspended and self.generation >= _GENERATION_OF_SECOND_CHANGE

    @property
    def suspended_condition(self) -> Condition | None:
        """The condition `Suspended`, if it is true: the Job controller has processed `spec.suspend`."""
        return find_true_condition(self.status.conditions, "Suspended")

    @property
    def queue(self) -> str | None:
        """Name of the Kueue queue that decides when the Job runs."""
        return self.view.metadata.labels.kueue_queue

    @property
    def requested_queue(self) -> str | None:
        """Name of the Kueue queue that the submission asks for, before the Job has its label."""
        return self.record.queue

    @property
    def is_queued_by_kueue(self) -> bool:
        """Kueue owns `spec.suspend`."""
        return self.queue is not None

    @property
    def is_given_to_queue(self) -> bool:
        """The submission is complete, and has left the start of the Job to its queue."""
        return self.submitted.is_queued

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.roles)

    @property
    def assembly_baseline(self) -> AssemblyBaseline:
        return read_mark(AssemblyBaseline, self._annotations.assembly_baseline)

    @property
    def was_never_admitted(self) -> bool:
        """Kueue has not admitted the Job yet, as far as is known: an admission changes the spec."""
        return not self.has_run and self.generation == 1

    @property
    def is_kept_suspended(self) -> bool:
        """The manifest of the user has `suspend: true`, so the submission does not start the Job."""
        return SUSPEND_FIELD in self.field_digests

    @property
    def is_started_by_others(self) -> bool:
        """Kueue or the user starts the Job, and the submission does not."""
        return self.is_queued_by_kueue or self.is_kept_suspended

    @property
    def has_run(self) -> bool:
        """The Job controller has started the Job at least once, or any known Job of the gang."""
        if self.jobs:
            return any(StoredGang(one).has_run for one in self.jobs_with_pods)
        status = self.status
        counters = status.active, status.ready, status.succeeded, status.failed, status.terminating
        return status.start_time is not None or any(counters)

    @property
    def is_submission_complete(self) -> bool:
        """Every object of the gang exists, as far as is known: a queue may start a Job before."""
        return self.is_given_to_queue or not (self.is_suspended or self.is_queued_by_kueue)

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
        return self.is_suspended and not (has_run or self.is_queued_by_kueue or self.is_given_to_queue)

    @property
    def _annotations(self) -> JobAnnotations:
        return self.view.metadata.annotations
