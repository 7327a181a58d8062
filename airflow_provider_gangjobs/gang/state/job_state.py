"""The state of a Job, as the next submission of the same task needs it. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.job import Job


class JobState(StrEnum):
    """The state of a Job for another submission of the same task."""

    LIVE = "live"
    """The Job was submitted, perhaps not completely, and has not ended."""
    SUCCEEDED = "succeeded"
    """The Job is complete, and its outcome was not delivered."""
    FAILED = "failed"
    DELIVERED = "delivered"
    """The Job ended, and its outcome was delivered."""
    HALTED = "halted"
    """The provider has halted the gang, and the Job has not failed yet."""
    TERMINATING = "terminating"
    """The Job is being deleted, however it ended: it can neither be adopted nor delivered."""
    DROPPED = "dropped"
    """The submission was deleted and the Job was kept. The Job belongs to nobody."""


def job_state(job: Job) -> JobState:
    """Return the state. Only the final conditions count: a Job with a target condition is still live."""
    states = (
        (job.is_being_deleted, JobState.TERMINATING),
        (job.is_dropped, JobState.DROPPED),
        # A gang that outlives its task is delivered while it runs. Until the gang ends, another try may adopt it.
        (job.is_delivered and (job.is_over or not job.outlives_task), JobState.DELIVERED),
        (job.complete_condition is not None, JobState.SUCCEEDED),
        (job.failed_condition is not None, JobState.FAILED),
        (job.is_halted, JobState.HALTED),
    )
    return next((state for holds, state in states if holds), JobState.LIVE)
