"""Phase: the progress of a gang. `phase_of` is the only function that computes it.

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
