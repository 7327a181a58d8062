"""Phase: the progress of a gang, and the state of its submission. Only `phase_of` computes a phase.

The first row of this table that applies decides:

    state of the Job                                                 phase
    ---------------------------------------------------------------  -----------------------------------------
    no Job, or a Job with another uid                                deleted
    Complete, also if the Job is being deleted                       succeeded
    Failed, before deletion was asked for                            failed
    being deleted, also if it failed after deletion was asked for    deleted
    halted, and pods still run, end, or wait for their harvest       finishing
    halted                                                           failed
    SuccessCriteriaMet or FailureTarget                              finishing
    the condition Suspended                                          queued
    spec.suspend, and the Job has run before                         queued
    spec.suspend, and Kueue or the user starts the Job               queued
    no startTime, and Kueue starts the Job                           queued
    no startTime                                                     submitted
    all ranks have started                                           running
    some rank has not started                                        assembling

If a row gives succeeded, failed or deleted, and known pods still wait for their harvest, the phase is finishing.

* A halted gang fails by the deadline of the halt, or its Job stays suspended, and no controller resumes it. If the Job
  controller had decided the end before, the gang does not count as halted.
* A suspended Job that never ran is submitted until the Job controller has processed it. If Kueue or the user starts it,
  it is queued at once, because its submission is complete.
* A Job that Kueue suspends and lets run again at once has no startTime, and is queued, not submitted again.
* The number of started ranks comes from the pods if they are known, and from the counters of the Job otherwise.

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
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.verdict import VerdictKind, judge

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.pod_index import Counts
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


class Phase(StrEnum):
    """Progress of a gang. The values are part of logs and events and are never renamed."""

    SUBMITTED = "submitted"
    """The Job exists, and the Job controller has not started it."""
    QUEUED = "queued"
    """The Job is suspended and may run later."""
    ASSEMBLING = "assembling"
    """The Job has started, and not all ranks have started."""
    RUNNING = "running"
    """All ranks have started."""
    FINISHING = "finishing"
    """The end of the gang is decided. Pods still run or wait for their harvest."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The Job failed, or the gang was halted."""
    DELETED = "deleted"
    """The Job is gone or replaced, or it is being deleted before it ended."""


FINAL_PHASES: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.DELETED})
PHASE_OF_VERDICT: Final = {
    VerdictKind.SUCCEEDED: Phase.SUCCEEDED,
    VerdictKind.FAILED: Phase.FAILED,
    VerdictKind.DELETED: Phase.DELETED,
    VerdictKind.REPLACED: Phase.DELETED,
}


def phase_of(gang: StoredGang | None, pods: Counts | None = None) -> Phase:
    """Return the phase of a gang.

    :param gang: The Job; `None` if the API server has no Job with its UID.
    :param pods: Counts of the gang's pods; `None` if the counters of the Job replace them.
    """
    held = pods.held if pods else 0
    if gang is None:
        return Phase.FINISHING if held else Phase.DELETED
    verdict = judge(gang, gang.ref)
    if verdict is not None:
        return Phase.FINISHING if held else PHASE_OF_VERDICT[verdict.kind]
    if gang.is_ending_by_halt:
        return Phase.FINISHING if held or gang.has_pods_left else Phase.FAILED
    if gang.interim_condition is not None:
        return Phase.FINISHING
    if _is_queued(gang):
        return Phase.QUEUED
    if gang.started_at is None:
        return Phase.SUBMITTED
    started = pods.started if pods else gang.started_ranks
    return Phase.RUNNING if started >= gang.ranks else Phase.ASSEMBLING


def _is_queued(gang: StoredGang) -> bool:
    if gang.suspended_condition is not None or (gang.is_queued_by_kueue and gang.started_at is None):
        return True
    return gang.is_suspended and (gang.has_run or gang.is_started_by_others)


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
