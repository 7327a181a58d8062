"""What a submission returns: the one live gang of a task, and the state of the gang. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job


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
    trigger_id: str
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


__all__ = ["Submission", "SubmissionState", "state_of"]
