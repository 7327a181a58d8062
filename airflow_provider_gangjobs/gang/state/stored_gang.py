"""StoredGang: all information about a gang that its stored Jobs contain, read in one place.

`read_job` reads a gang from its main Job alone, and `gang.state.gang_jobs.read_gang` from all of its Jobs. Both take
views as the informers keep them and dicts as a request returns them, with equal results. Each fact (whether the gang is
suspended, which task instance is responsible for it) is one property.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.roles import parse_roles
from airflow_provider_gangjobs.gang.spec import SUSPEND_FIELD, OnFinish, OnKill, WaitUntil
from airflow_provider_gangjobs.gang.state.job_annotations import AssemblyBaseline, parse_assembly_baseline
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
    def submission_id(self) -> str | None:
        return self._annotations.submission_id

    @property
    def task(self) -> str | None:
        """The task key as JSON; `None` for the id of a client."""
        return self._annotations.task

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
        return TaskKey.from_json(self.task, installation=self.installation) if self.task else None

    @property
    def on_kill(self) -> OnKill | None:
        """What happens to the live gang of a task that has ended."""
        text = self._annotations.on_kill
        return OnKill(text) if text in set(OnKill) else None

    @property
    def on_finish(self) -> OnFinish | None:
        """What happens to the Job after its outcome was delivered."""
        text = self._annotations.on_finish
        return OnFinish(text) if text in set(OnFinish) else None

    @property
    def outlives_task(self) -> bool:
        """The gang runs on after its task has succeeded, because the task waits only for its start."""
        return self._annotations.wait_until in {WaitUntil.SUBMITTED, WaitUntil.RUNNING}

    @property
    def spec_hash(self) -> str | None:
        """Hash of the parameters from which the Job was made."""
        return self._annotations.spec_hash

    @property
    def field_digests(self) -> dict[str, str]:
        """Digest of each parameter that was given at the submission."""
        return _parse_mapping(self._annotations.spec_fields)

    @property
    def decision(self) -> str | None:
        """How the pods are placed, in the format of `gang.render.placement.PlacementDecision`."""
        return self._annotations.gang

    @property
    def requests(self) -> dict[str, str]:
        """What all ranks request together: resource -> quantity; empty if the Job does not say."""
        return _parse_mapping(self._annotations.requests)

    @property
    def disruptions(self) -> int:
        """Number of consecutive attempts before this one that ended by a disruption."""
        return parse_number(self._annotations.disruptions) or 0

    @property
    def restarts_max(self) -> int | None:
        """How often the programs of the ranks may be restarted in their pods; `None` without supervisors."""
        return parse_number((self._annotations.restarts or "").rpartition(":")[2])

    @property
    def restarts_alone(self) -> bool:
        """Each rank is restarted alone, and has as many restarts."""
        return (self._annotations.restarts or "").startswith("alone:")

    @property
    def active_deadline_s(self) -> int | None:
        return self.view.spec.active_deadline_seconds

    @property
    def time_limit(self) -> str | None:
        """The parameters of the task from which the provider computed `active_deadline_s`, if it did."""
        return self._annotations.time_limit

    # -- roles -------------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[RoleRanks, ...]:
        """The roles of the gang in their order; empty for a gang of one Job."""
        text = self._annotations.roles
        return parse_roles(text) if text is not None else ()

    @property
    def has_roles(self) -> bool:
        """The gang has one Job for each role."""
        return self._annotations.roles is not None

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
        """The gang has further Jobs, and their state is not known."""
        return self.has_roles and not self.jobs

    # -- ownership ---------------------------------------------------------------------------------------------------

    @property
    def claim(self) -> str | None:
        return self._annotations.claim

    @property
    def max_tries(self) -> int | None:
        """`max_tries` of the task instance that last held the claim."""
        return parse_number(self._annotations.max_tries)

    def holds_claim(self, claim: str) -> bool:
        """Return whether the task instance with this id, which is not empty, is responsible for the gang."""
        return bool(claim) and self._annotations.claim == claim

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
        return self._annotations.queue

    @property
    def is_queued_by_kueue(self) -> bool:
        """Kueue owns `spec.suspend`."""
        return self.queue is not None

    @property
    def is_given_to_queue(self) -> bool:
        """The submission is complete, and has left the start of the Job to its queue."""
        return self._annotations.queued is not None

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.roles)

    @property
    def assembly_baseline(self) -> AssemblyBaseline:
        return parse_assembly_baseline(self._annotations.assembly_baseline)

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


def _parse_mapping(text: str | None) -> dict[str, str]:
    try:
        given = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
