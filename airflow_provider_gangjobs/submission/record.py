"""The record of a submission, which is stored in the Job and nowhere else. Pure.

The record does not show what a pod waits for and which rank failed. Follow the gang for these facts.

What a submission returns: the one live gang of a task, and the state of the gang. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job

__all__ = ["Submission", "SubmissionState", "state_of"]


class SubmissionState(StrEnum):
    """The state of the gang when the submission returns."""

    RUNNING = "running"
    """The Job was started. Its pods may still wait for nodes."""
    SUSPENDED = "suspended"
    """The Job is suspended. Kueue starts it, or the user with `keep_suspended`."""
    SUCCEEDED = "succeeded"
    """The gang had succeeded before, and its outcome was not delivered."""
    FAILED = "failed"
    """The gang had failed before, and no try has read how."""


@dataclass(frozen=True)
class Submission:
    """The one live gang of a task."""

    ref: GangRef
    attempt: int
    workers: int
    """The number of ranks."""
    submission_id: str
    decision: str
    """The value of the Job's annotation: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    adopted: bool
    """Whether the gang existed before, from an earlier try or a concurrent submitter."""
    state: SubmissionState
    requests: int
    """How many requests the submission has sent."""
    disruptions: int = 0
    """How many attempts in a row were lost to disruptions before this one."""
    notes: tuple[str, ...] = ()
    """Guarantees that were requested with `preferred` and that the gang does not have, for the log."""
    queue: str | None = None
    """The Kueue queue that decides when the Job runs."""
    queue_defaults: tuple[str, ...] = ()
    """Which of `queue_name` and `queue_priority` a new gang has from the connection."""


def state_of(job: Job) -> SubmissionState:
    """Return the state of a gang by its Job as it was last read."""
    if job.complete_condition is not None:
        return SubmissionState.SUCCEEDED
    if job.failed_condition is not None:
        return SubmissionState.FAILED
    return SubmissionState.SUSPENDED if job.is_suspended or job.has_job_set else SubmissionState.RUNNING


class OperationState(StrEnum):
    """The state of a submission as an operation."""

    IN_PROGRESS = "in progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The gang failed, was halted, or could never be submitted completely. The gang can be submitted again."""
    DELETING = "deleting"
    """The Job is being deleted, however the gang ended. The phase shows how the gang ended."""


@dataclass(frozen=True)
class FailureCause:
    """Why a submission failed."""

    reason: str
    """The reason of the Job's Failed condition, the class of the error that stopped the submission, or `Halted`."""
    message: str


@dataclass(frozen=True)
class SubmissionRecord:
    """The current state of one submission."""

    submission_id: str
    ref: GangRef
    attempt: int
    state: OperationState
    phase: Phase
    """The phase as in the trigger's log, derived from the counters of the Job only."""
    decision: str
    """The value of the Job's annotation: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    spec_hash: str
    workers: int
    ready: int
    """The number of ranks that run and are ready."""
    submitted_at: datetime
    installation: str = ""
    """Id of the Airflow installation that made the gang. Empty if the Job does not name it."""
    started_at: datetime | None = None
    """When the Job was started."""
    ended_at: datetime | None = None
    delivered_at: datetime | None = None
    error: FailureCause | None = None


def record_of(job: Job) -> SubmissionRecord:
    """Return the record of the submission that a stored Job belongs to."""
    assert job.created_at is not None, "a stored Job has a creation time"
    phase = phase_of(job)
    return SubmissionRecord(
        submission_id=job.submission_id or "",
        ref=job.ref,
        attempt=job.attempt_number,
        state=_state(job, phase),
        phase=phase,
        decision=job.decision or "",
        spec_hash=job.spec_hash or "",
        workers=job.workers,
        ready=job.status.ready,
        submitted_at=job.created_at,
        installation=job.installation,
        started_at=job.started_at,
        ended_at=job.ended_at,
        delivered_at=job.delivered_at,
        error=_error(job),
    )


def _state(job: Job, phase: Phase) -> OperationState:
    if job.is_being_deleted:
        return OperationState.DELETING
    if job.is_ending_by_halt:
        return OperationState.FAILED
    return _STATE_OF.get(phase, OperationState.IN_PROGRESS)


_STATE_OF: Final = {Phase.SUCCEEDED: OperationState.SUCCEEDED, Phase.FAILED: OperationState.FAILED}


def _error(job: Job) -> FailureCause | None:
    failed = job.failed_condition or job.failure_target_condition
    if failed is not None and not job.failed_by_halt:
        return FailureCause(failed.reason, failed.message)
    return FailureCause(*job.halt_cause) if job.is_halted else None
