"""Verdict: the one answer to how the Job ended. It is given once and never taken back.

Only `Complete` or `Failed` on the Job with the expected uid decides. `SuccessCriteriaMet` and
`FailureTarget` are previews: counters may still change and pods may still run (KEP-2307).
A Job that is gone, or that stands there with another uid, is an answer of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.kube.views import Condition

REASON_DELETED: Final = "JobDeleted"
REASON_REPLACED: Final = "JobReplaced"


class VerdictKind(StrEnum):
    """How a Job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Verdict:
    """How the Job ended, in the Job controller's words where there are any."""

    kind: VerdictKind
    reason: str = ""
    message: str = ""
    at: datetime | None = None
    """When, by the server's clock; `None` if nobody saw it."""
    completed_indexes: str = ""
    other_uid: str = ""
    """Of a Job that was replaced: the uid of the Job that has its name now."""

    @property
    def job_is_there(self) -> bool:
        """The Job still stands, and with it what it owns."""
        return self.kind in {VerdictKind.SUCCEEDED, VerdictKind.FAILED}


def judge(job: Job | None, ref: GangRef) -> Verdict | None:
    """The verdict over the Job as it is seen, or `None` while it is open.

    `job=None` must mean that the server has no such Job, not that it could not be asked.
    """
    if job is None:
        return Verdict(VerdictKind.DELETED, REASON_DELETED, f"Job {ref} with uid {ref.uid} is gone")
    if job.ref.uid != ref.uid:
        other = job.ref.uid
        said = f"Job {ref} now has uid {other}, not {ref.uid}"
        return Verdict(VerdictKind.REPLACED, REASON_REPLACED, said, other_uid=other)
    return _conditions_say(job) or _deletion_says(job, ref)


def _conditions_say(job: Job) -> Verdict | None:
    for found, ended in ((job.complete, VerdictKind.SUCCEEDED), (job.failed, VerdictKind.FAILED)):
        if found is not None and not _came_from_deletion(found, ended, job):
            at = (job.status.completion_time if ended is VerdictKind.SUCCEEDED else None) or found.last_transition_time
            return Verdict(ended, found.reason, found.message, at, job.status.completed_indexes)
    return None


def _came_from_deletion(found: Condition, ended: VerdictKind, job: Job) -> bool:
    """A failure noted after deletion began: pods that deletion killed are counted as failed by then."""
    asked = job.deletion_requested_at
    if asked is None or found.last_transition_time is None or ended is VerdictKind.SUCCEEDED:
        return False
    return found.last_transition_time > asked


def _deletion_says(job: Job, ref: GangRef) -> Verdict | None:
    asked = job.deletion_requested_at
    if asked is None:
        return None
    return Verdict(
        VerdictKind.DELETED, REASON_DELETED, f"Job {ref} is being deleted", asked, job.status.completed_indexes
    )
