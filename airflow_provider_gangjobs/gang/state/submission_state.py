"""The state of a submission: how far the gang of a task, or of a submission id, is for whoever submits or asks. Pure.

Several enums say how far something is. Each answers one question:

    question                                                    answer             from
    ----------------------------------------------------------  -----------------  ------------------------------------
    What does the next submission, an end, or a user find?      SubmissionState    the Job
    What is the gang doing, in logs, events and the UI?         Phase              the Job, and pods if they are known
    How did the Job end, once and for all?                      VerdictKind        the Job, or that it is gone
    Why does the event of a trigger end the wait of its task?   Status             the verdict, a deadline or an error
    How did one rank end?                                       OutcomeKind        the pod of the rank
    What happened to the gang when its task was killed?         KillResult         the deletion of the Job
    Has a gang reached what a sensor waits for?                 Answer             the Job of the newest attempt
    Why does a queued gang wait in its queue?                   QueueState         the Workload of Kueue
    What is known about the end of the gang's task?             TaskEnd            Airflow's API server

Two readers of one Job may see two states. An end that was delivered is `delivered` for the next submission, which
starts anew, and is still `succeeded` or `failed` for a user who asks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


class SubmissionState(StrEnum):
    """The state of a submission. The values are part of the records that users read and are never renamed."""

    IN_PROGRESS = "in progress"
    """The Job was submitted, perhaps not completely, and has not ended: the gang is live."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """In a record also: the gang was halted, or could never be submitted completely."""
    HALTED = "halted"
    """The provider has halted the gang, and the Job has not failed yet."""
    DELIVERED = "delivered"
    """The Job ended, and its outcome was delivered."""
    DELETING = "deleting"
    """The Job is being deleted, however it ended: it can neither be adopted nor delivered."""
    DROPPED = "dropped"
    """The submission was deleted and the Job was kept. The Job belongs to nobody."""


def state_of(gang: StoredGang) -> SubmissionState:
    """Return the state as the next submission of the same task or id finds it."""
    if gang.is_being_deleted:
        return SubmissionState.DELETING
    if gang.is_dropped:
        return SubmissionState.DROPPED
    # A gang that outlives its task is delivered while it runs. Until the gang ends, another try may adopt it.
    if gang.is_delivered and (gang.is_over or not gang.outlives_task):
        return SubmissionState.DELIVERED
    ended = end_of(gang)
    is_halted = ended is SubmissionState.IN_PROGRESS and gang.is_halted
    return SubmissionState.HALTED if is_halted else ended


def end_of(gang: StoredGang) -> SubmissionState:
    """Return whether the gang succeeded, failed, or is in progress, by the final conditions only."""
    if gang.complete_condition is not None:
        return SubmissionState.SUCCEEDED
    return SubmissionState.FAILED if gang.failed_condition is not None else SubmissionState.IN_PROGRESS
