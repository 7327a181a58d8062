"""Where a Job stands for the next submission of the same task. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.job import Job


class JobState(StrEnum):
    """What another submission of the same task has to know about a Job."""

    LIVE = "live"
    """Submitted, perhaps not completely, and not ended."""
    SUCCEEDED = "succeeded"
    """The Job is complete, and its outcome was not delivered."""
    FAILED = "failed"
    DELIVERED = "delivered"
    """The Job ended, and its outcome was delivered."""
    HALTED = "halted"
    """The Job was suspended for good."""
    TERMINATING = "terminating"
    """The Job is being deleted, however it ended: it can neither be adopted nor delivered."""
    DROPPED = "dropped"
    """The submission was deleted and the Job was kept. The Job belongs to nobody."""


def job_state(job: Job) -> JobState:
    """Return the state. Only final conditions count: a Job whose fate is announced is still live."""
    states = (
        (job.is_being_deleted, JobState.TERMINATING),
        (job.is_dropped, JobState.DROPPED),
        (job.is_delivered, JobState.DELIVERED),
        (job.complete is not None, JobState.SUCCEEDED),
        (job.failed is not None, JobState.FAILED),
        (job.is_halted, JobState.HALTED),
    )
    return next((state for holds, state in states if holds), JobState.LIVE)
