"""Phase: how far a gang is. `phase_of` is the only function that says so.

The log of the trigger, events, the record of a submission and the page in Airflow's UI all ask it. The first row of
this table that fits decides:

    what the server shows                                            phase
    ---------------------------------------------------------------  -----------------------------------------
    no Job, or a Job with another uid                                deleted
    Complete, also if the Job is being deleted                       succeeded
    Failed, before deletion was asked for                            failed
    being deleted, also if it failed after deletion was asked for    deleted
    SuccessCriteriaMet or FailureTarget                              finishing
    halted, and pods still run, end, or wait for their harvest       finishing
    halted                                                           failed
    the condition Suspended                                          queued
    spec.suspend, and the Job has run before                         queued
    spec.suspend, and Kueue or the user starts the Job               queued
    no startTime                                                     submitted
    all ranks have started                                           running
    some rank has not started                                        assembling

Where a row says succeeded, failed or deleted, and pods are known that still wait for their harvest, the phase is
finishing. Only a reader of pods can know that.

Why the readers had to be brought together, and how:

* A Complete Job that is being deleted has succeeded. Deletion, for example by the TTL controller, does not undo what
  the gang did. That the Job is about to go is told by `SubmissionRecord.state`.
* A halted gang has failed, although its Job is suspended as a queued one is: nothing lets it run again.
* A suspended Job that never ran is submitted until the Job controller has looked at it, and queued from then on.
  If Kueue or the user starts the Job, it is queued at once: its submission has done its part.
* Whether all ranks have started is counted from pods where they are known, and from the Job's own counters otherwise.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.verdict import VerdictKind, judge

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.gang.state.progress import Counts


class Phase(StrEnum):
    """How far a gang is. A contract: in logs and events, never renamed."""

    SUBMITTED = "submitted"
    """The Job exists, and the Job controller has not started it."""
    QUEUED = "queued"
    """The Job is suspended and may run later."""
    ASSEMBLING = "assembling"
    """The Job has started, and not all ranks run."""
    RUNNING = "running"
    """All ranks have started."""
    FINISHING = "finishing"
    """How the gang ends is decided, and pods still end or wait for their harvest."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The Job failed, or the gang was halted."""
    DELETED = "deleted"
    """The Job is gone, replaced, or being deleted before it ended."""


FINAL_PHASES: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.DELETED})
PHASE_OF_VERDICT: Final = {
    VerdictKind.SUCCEEDED: Phase.SUCCEEDED,
    VerdictKind.FAILED: Phase.FAILED,
    VerdictKind.DELETED: Phase.DELETED,
    VerdictKind.REPLACED: Phase.DELETED,
}


def phase_of(job: Job | None, pods: Counts | None = None) -> Phase:
    """Say how far a gang is.

    :param job: The gang's own Job; `None` if the server has none of this uid.
    :param pods: What is counted of the gang's pods; `None` if they are not known, then the Job's counters stand in.
    """
    held = pods.held if pods else 0
    if job is None:
        return Phase.FINISHING if held else Phase.DELETED
    verdict = judge(job, job.ref)
    if verdict is not None:
        return Phase.FINISHING if held else PHASE_OF_VERDICT[verdict.kind]
    if job.interim_condition is not None:
        return Phase.FINISHING
    if job.ends_by_halt:
        return Phase.FINISHING if held or job.has_pods_left else Phase.FAILED
    if _is_queued(job):
        return Phase.QUEUED
    if job.started_at is None:
        return Phase.SUBMITTED
    started = pods.started if pods else job.started_ranks
    return Phase.RUNNING if started >= job.ranks else Phase.ASSEMBLING


def _is_queued(job: Job) -> bool:
    if job.suspended is not None:
        return True
    return job.is_suspended and (job.has_run or job.is_started_by_others)
