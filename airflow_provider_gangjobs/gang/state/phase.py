"""Phase and verdict: the progress of a gang, the state of its submission, and how its Job ended.

Only `phase_at` computes a phase. The first row of this table that applies decides:

    state of the Job                                                 phase
    ---------------------------------------------------------------  -----------------------------------------
    no Job, or a Job with another uid                                deleted
    Complete, also if the Job is being deleted                       succeeded
    Failed, before deletion was asked for                            failed
    being deleted, also if it failed after deletion was asked for    deleted
    stopped, and pods still run, end, or wait for their harvest       finishing
    stopped                                                           failed
    SuccessCriteriaMet or FailureTarget                              finishing
    the condition Suspended                                          queued
    spec.suspend, and the Job has run before                         queued
    spec.suspend, and Kueue or the user starts the Job               queued
    no startTime, and Kueue starts the Job                           queued
    no startTime                                                     submitted
    all ranks have started                                           running
    some rank has not started                                        assembling

If a row gives succeeded, failed or deleted, and known pods still wait for their harvest, the phase is finishing.

* A stopped gang fails by the deadline of the stop, or its Job stays suspended, and no controller resumes it. If the Job
  controller had decided the end before, the gang does not count as stopped.
* A suspended Job that never ran is submitted until the Job controller has processed it. If Kueue or the user starts it,
  it is queued at once, because its submission is complete.
* A Job that Kueue suspends and lets run again at once has no startTime, and is queued, not submitted again.
* The number of started ranks comes from the pods if they are known, and from the counters of the Job otherwise.

Several enums say how far something is. Each answers one question:

    question                                                    answer             from
    ----------------------------------------------------------  -----------------  ------------------------------------
    What does the next submission, an end, or a user find?      SubmissionState    the Job
    What is the gang doing, in logs, events and the UI?         Phase              the Job, and pods if they are known
    How did the Job end, once and for all?                      Status        the Job, or that it is gone
    Why does the event of a trigger end the wait of its task?   Status             the verdict, a deadline or an error
    How did one rank end?                                       OutcomeKind        the pod of the rank
    Has a gang reached what a sensor waits for?                 Answer             the Job of the newest attempt
    What is known about the end of the gang's task?             TaskEnd            Airflow's API server

Two readers of one Job may see two states. An end that was delivered is `delivered` for the next submission, which
starts anew, and is still `succeeded` or `failed` for a user who asks.

The verdict on a Job never changes. Only the conditions `Complete` and `Failed` of the Job with the expected UID decide.
After `SuccessCriteriaMet` and `FailureTarget` counters may still change (KEP-2307). A Job that is gone or has another
UID is a verdict, too. The pods are complete if those in the watch's cache are all pods that a Job ever had, so that the
final list of pods is not needed. Every doubt makes the caller list the pods. docs/decisions/tracking.md explains the
facts behind the rule.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.state.pods import deletion_requested_at
from airflow_provider_gangjobs.gang.state.stopped import REASON_JOB_DEADLINE, Stopper

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.pods import Counts, PodIndex
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


REASON_DELETED: Final = "JobDeleted"
REASON_DELETED_ON_PURPOSE: Final = "GangDeleted"
"""Somebody has deleted the gang on purpose, and has said so on the Job before (`ANNOTATION_DELETED_BY`)."""
REASON_REPLACED: Final = "JobReplaced"


class Status(StrEnum):
    """How the wait for a gang has ended. The values are part of events and are never renamed."""

    RUNNING = "running"
    """All ranks run, and the wait was for that."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The Job failed, or the gang was stopped."""
    DELETED = "deleted"
    REPLACED = "replaced"
    """Another Job has the name now."""
    TIMEOUT = "timeout"
    """A deadline has passed."""
    ERROR = "error"
    """The gang could not be followed, so its state is unknown."""


class Verdict(Struct, frozen=True):
    """How the Job ended, with the reason and message of the Job controller if there are any."""

    status: Status
    """Succeeded, failed, deleted, or replaced."""
    reason: str = ""
    message: str = ""
    at: datetime | None = None
    """Time of the end by the server's clock; `None` if it is unknown."""
    completed_indexes: str = ""
    limited_by: str = ""
    """The parameters of the task that set the Job's own time limit, if the provider has set the limit."""
    other_uid: str = ""
    """UID of the Job that has the name now, if the Job was replaced."""
    deletion_has_only_begun: bool = False
    """The gang was stopped to be deleted. Its Job still exists, and so do the objects that it owns."""

    @property
    def job_is_there(self) -> bool:
        """The Job still exists, and so do the objects that it owns."""
        return self.status in {Status.SUCCEEDED, Status.FAILED}


def judge(gang: StoredGang | None, ref: GangRef, *, last_seen: StoredGang | None = None) -> Verdict | None:
    """Return the verdict on a Job, if it has ended.

    :param gang: The Job; `None` only if the API server has no Job with this name, and not after a failed read.
    :param last_seen: The Job as it was last seen, which may say who has deleted it.
    """
    if gang is None:
        if last_seen is not None and last_seen.ref == ref and last_seen.view.metadata.annotations.deleted_by:
            return Verdict(Status.DELETED, REASON_DELETED_ON_PURPOSE, _deleted_by(last_seen))
        return Verdict(Status.DELETED, REASON_DELETED, f"Job {ref} with uid {ref.uid} is gone")
    if gang.ref.uid != ref.uid:
        other = gang.ref.uid
        message = f"Job {ref} now has uid {other}, not {ref.uid}"
        return Verdict(Status.REPLACED, REASON_REPLACED, message, other_uid=other)
    return _verdict_by_conditions(gang) or _verdict_by_deletion(gang, ref)


def _verdict_by_conditions(gang: StoredGang) -> Verdict | None:
    if (found := gang.complete_condition) is not None:
        kind, at = Status.SUCCEEDED, gang.status.completion_time or found.last_transition_time
    elif (found := gang.failed_condition) is not None:
        kind, at, requested = Status.FAILED, found.last_transition_time, deletion_requested_at(gang.view.metadata)
        if at is not None and requested is not None and at > requested:
            return None  # the Job controller counts pods that the deletion ends as failed
    else:
        return None
    indexes, limited_by = gang.status.completed_indexes, gang.claim.time_limit
    return Verdict(kind, found.reason, found.message, at, indexes, limited_by=limited_by)


def _verdict_by_deletion(gang: StoredGang, ref: GangRef) -> Verdict | None:
    requested = deletion_requested_at(gang.view.metadata)
    if requested is None:
        return None
    reason, message = REASON_DELETED, f"Job {ref} is being deleted"
    if gang.view.metadata.annotations.deleted_by:
        reason, message = REASON_DELETED_ON_PURPOSE, _deleted_by(gang)
    return Verdict(Status.DELETED, reason, message, requested, gang.status.completed_indexes)


def _deleted_by(gang: StoredGang) -> str:
    return f"Job {gang.ref} was deleted by {gang.view.metadata.annotations.deleted_by}"


def judge_stopped(gang: StoredGang | None, ref: GangRef, *, last_seen: StoredGang | None = None) -> Verdict | None:
    """Return the verdict on a Job that was stopped; `None` if the stop decides how the gang ends. See `judge`.

    A gang that ended by itself at the last moment keeps that verdict. A gang that is deleted on purpose is stopped
    before, so its verdict is the deletion, unless a deadline has stopped it.
    """
    verdict = judge(gang, ref, last_seen=last_seen)
    if gang is None or (verdict is not None and not (_is_stop_verdict(verdict) and gang.is_stopped)):
        return verdict
    if gang.view.metadata.annotations.deleted_by and deadline_of(gang) is None:
        return Verdict(Status.DELETED, REASON_DELETED_ON_PURPOSE, _deleted_by(gang), deletion_has_only_begun=True)
    return None


def _is_stop_verdict(verdict: Verdict) -> bool:
    """Return whether a stopped Job failed because of the deadline that `stop_patch` set in it."""
    return verdict.status is Status.FAILED and verdict.reason == REASON_JOB_DEADLINE


GENERATION_AS_SUBMITTED: Final = 2
"""The creation of the Job is generation 1, and its start 2. Each further change of the spec adds 1."""


def has_all_pods(gang: StoredGang | None, pods: PodIndex, recorded: AbstractSet[str], ref: GangRef) -> bool | None:
    """Return whether the known pods, which may be old, are all pods that a Job ever had.

    There is one pod for each rank then, and each pod has succeeded. False: according to the Job they soon are, but the
    watch of pods is behind the watch of Jobs. `None`: only the API server can tell, as for every Job that failed.

    :param recorded: The UIDs of recorded outcomes.
    """
    if gang is None or not _succeeded_as_submitted(gang, ref) or pods.ended_otherwise:
        return None
    ranks = gang.status.succeeded
    if len(pods) < ranks:
        return False
    if not (pods.has_one_pod_per_rank and pods.has_exactly_ranks(ranks)):
        return None
    if pods.succeeded < ranks:
        return False
    # This comparison is the most expensive one, so it comes last.
    return True if recorded <= pods.uids else None


def _succeeded_as_submitted(gang: StoredGang, ref: GangRef) -> bool:
    """The Job has succeeded, its spec never changed, and each rank had one pod, which succeeded."""
    verdict = judge(gang, ref)
    return (
        verdict is not None
        and verdict.status is Status.SUCCEEDED
        and 0 < gang.view.metadata.generation <= GENERATION_AS_SUBMITTED
        and 0 < (gang.view.spec.completions or 0) == gang.parallelism == gang.status.succeeded
        and gang.status.failed == 0
    )


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
    """The Job failed, or the gang was stopped."""
    DELETED = "deleted"
    """The Job is gone or replaced, or it is being deleted before it ended."""


FINAL_PHASES: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.DELETED})
PHASE_OF_STATUS: Final = {
    Status.SUCCEEDED: Phase.SUCCEEDED,
    Status.FAILED: Phase.FAILED,
    Status.TIMEOUT: Phase.FAILED,
    Status.DELETED: Phase.DELETED,
    Status.REPLACED: Phase.DELETED,
}
"""The final phase of a gang. The other values do not say that the gang has ended."""


def phase_of(gang: StoredGang | None) -> Phase:
    """Return the phase of a gang by its Jobs alone.

    :param gang: The Job; `None` if the API server has no Job with its UID.
    """
    return Phase.DELETED if gang is None else phase_at(gang, judge(gang, gang.ref))


def phase_at(gang: StoredGang | None, verdict: Verdict | None, pods: Counts | None = None) -> Phase:
    """Return the phase of a gang at one look.

    :param verdict: The verdict on the Job at this look.
    :param pods: Counts of the gang's pods; `None` if the counters of the Job replace them.
    """
    held = pods.held if pods else 0
    if verdict is not None:
        return Phase.FINISHING if held else PHASE_OF_STATUS[verdict.status]
    assert gang is not None, "a Job that is gone has a verdict"
    if gang.ends_by_stop:
        return Phase.FINISHING if held or gang.has_pods_left else Phase.FAILED
    if gang.interim_condition is not None:
        return Phase.FINISHING
    if _is_queued(gang):
        return Phase.QUEUED
    if gang.status.start_time is None:
        return Phase.SUBMITTED
    started = pods.started if pods else gang.started_ranks
    return Phase.RUNNING if started >= gang.ranks else Phase.ASSEMBLING


def is_started_by_others(gang: StoredGang) -> bool:
    """Return whether Kueue or the user starts the Job, and the submission does not."""
    return gang.queue is not None or gang.record.is_kept_suspended


def _is_queued(gang: StoredGang) -> bool:
    if gang.suspended_condition is not None or (gang.queue is not None and gang.status.start_time is None):
        return True
    return gang.is_suspended and (gang.has_run or is_started_by_others(gang))


class SubmissionState(StrEnum):
    """The state of a submission. The values are part of the records that users read and are never renamed."""

    IN_PROGRESS = "in progress"
    """The Job was submitted, perhaps not completely, and has not ended: the gang is live."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """In a record also: the gang was stopped, or could never be submitted completely."""
    STOPPED = "stopped"
    """The provider has stopped the gang, and the Job has not failed yet."""
    DELIVERED = "delivered"
    """The Job ended, and its outcome was delivered."""
    DELETING = "deleting"
    """The Job is being deleted, however it ended: it can neither be adopted nor delivered."""
    FOREIGN = "foreign"
    """The record of the gang cannot be read (`StoredGang.problem`), so nobody follows, adopts or deletes the Job."""


def state_of(gang: StoredGang) -> SubmissionState:
    """Return the state as the next submission of the same task or id finds it."""
    if gang.is_being_deleted:
        return SubmissionState.DELETING
    if gang.problem:
        return SubmissionState.FOREIGN
    # A gang that outlives its task is delivered while it runs. Until the gang ends, another try may adopt it.
    if gang.is_delivered and (gang.is_over or not gang.claim.outlives_task):
        return SubmissionState.DELIVERED
    ended = end_of(gang)
    is_stopped = ended is SubmissionState.IN_PROGRESS and gang.is_stopped
    return SubmissionState.STOPPED if is_stopped else ended


def is_live(gang: StoredGang) -> bool:
    """Return whether the gang has not ended, and was neither stopped nor given up."""
    return state_of(gang) is SubmissionState.IN_PROGRESS


def end_of(gang: StoredGang) -> SubmissionState:
    """Return whether the gang succeeded, failed, or is in progress, by the final conditions only."""
    if gang.complete_condition is not None:
        return SubmissionState.SUCCEEDED
    return SubmissionState.FAILED if gang.failed_condition is not None else SubmissionState.IN_PROGRESS


def deadline_of(gang: StoredGang | None) -> Stopped | None:
    """Return the mark of a gang that was stopped because a deadline had passed."""
    stopped = gang.stopped if gang is not None else None
    is_known = stopped is not None and stopped.by is Stopper.DEADLINE and stopped.phase in set(Phase)
    return stopped if is_known else None
