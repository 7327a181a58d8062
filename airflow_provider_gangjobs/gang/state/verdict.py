"""Verdict: how a Job ended. The verdict on a Job never changes.

Only the conditions `Complete` and `Failed` of the Job with the expected UID decide. `SuccessCriteriaMet` and
`FailureTarget` are interim conditions: counters may still change and pods may still run (KEP-2307). A Job that is gone
and a Job that has another UID are verdicts too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.kube.views import Condition

REASON_DELETED: Final = "JobDeleted"
REASON_DELETED_ON_PURPOSE: Final = "GangDeleted"
"""Somebody has deleted the gang on purpose, and has said so on the Job before (`ANNOTATION_DELETED_BY`)."""
REASON_REPLACED: Final = "JobReplaced"


class VerdictKind(StrEnum):
    """Kind of a verdict. The values are part of events."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"
    REPLACED = "replaced"


class Verdict(Struct, frozen=True):
    """How the Job ended, with the reason and message of the Job controller if there are any."""

    kind: VerdictKind
    reason: str = ""
    message: str = ""
    at: datetime | None = None
    """Time of the end by the server's clock; `None` if it is unknown."""
    completed_indexes: str = ""
    limited_by: str = ""
    """The parameters of the task that set the Job's own time limit, if the provider has set the limit."""
    other_uid: str = ""
    """UID of the Job that has the name now, if the Job was replaced."""

    @property
    def job_is_there(self) -> bool:
        """The Job still exists, and so do the objects that it owns."""
        return self.kind in {VerdictKind.SUCCEEDED, VerdictKind.FAILED}


def judge(job: Job | None, ref: GangRef, *, last_seen: Job | None = None) -> Verdict | None:
    """Return the verdict on a Job, or `None` if the Job has not ended.

    :param job: The Job; `None` only if the API server has no Job with this name. After a failed read the verdict is
        unknown, and the function must not be called.
    :param last_seen: The Job as it was last seen, if anybody has seen it. It may say who has deleted the Job.
    """
    if job is None:
        if last_seen is not None and last_seen.ref == ref and last_seen.deleted_by:
            return Verdict(VerdictKind.DELETED, REASON_DELETED_ON_PURPOSE, _deleted_by(last_seen))
        return Verdict(VerdictKind.DELETED, REASON_DELETED, f"Job {ref} with uid {ref.uid} is gone")
    if job.ref.uid != ref.uid:
        other = job.ref.uid
        message = f"Job {ref} now has uid {other}, not {ref.uid}"
        return Verdict(VerdictKind.REPLACED, REASON_REPLACED, message, other_uid=other)
    return _verdict_by_conditions(job) or _verdict_by_deletion(job, ref)


def _verdict_by_conditions(job: Job) -> Verdict | None:
    for found, kind in ((job.complete_condition, VerdictKind.SUCCEEDED), (job.failed_condition, VerdictKind.FAILED)):
        if found is not None and not _came_from_deletion(found, kind, job):
            at = (job.status.completion_time if kind is VerdictKind.SUCCEEDED else None) or found.last_transition_time
            limited_by = job.time_limit or ""
            return Verdict(kind, found.reason, found.message, at, job.status.completed_indexes, limited_by=limited_by)
    return None


def _came_from_deletion(found: Condition, kind: VerdictKind, job: Job) -> bool:
    """The Job failed after its deletion was requested. The Job controller counts pods that the deletion ends as
    failed."""
    requested = job.deletion_requested_at
    if requested is None or found.last_transition_time is None or kind is VerdictKind.SUCCEEDED:
        return False
    return found.last_transition_time > requested


def _verdict_by_deletion(job: Job, ref: GangRef) -> Verdict | None:
    requested = job.deletion_requested_at
    if requested is None:
        return None
    reason, message = REASON_DELETED, f"Job {ref} is being deleted"
    if job.deleted_by:
        reason, message = REASON_DELETED_ON_PURPOSE, _deleted_by(job)
    return Verdict(VerdictKind.DELETED, reason, message, requested, job.status.completed_indexes)


def _deleted_by(job: Job) -> str:
    return f"Job {job.ref} was deleted by {job.deleted_by}"
