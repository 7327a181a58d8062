"""Verdict: how a Job ended. The verdict on a Job never changes.

Only the conditions `Complete` and `Failed` of the Job with the expected UID decide. After `SuccessCriteriaMet` and
`FailureTarget` counters may still change (KEP-2307). A Job that is gone or has another UID is a verdict, too.

Completeness: whether the pods in the watch's cache are all pods that a Job ever had, so that the final list of pods is
not needed. Every doubt makes the caller list the pods. docs/decisions/tracking.md explains the facts behind the rule.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
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
    deletion_has_only_begun: bool = False
    """The gang was halted to be deleted. Its Job still exists, and so do the objects that it owns."""

    @property
    def job_is_there(self) -> bool:
        """The Job still exists, and so do the objects that it owns."""
        return self.kind in {VerdictKind.SUCCEEDED, VerdictKind.FAILED}


def judge(gang: StoredGang | None, ref: GangRef, *, last_seen: StoredGang | None = None) -> Verdict | None:
    """Return the verdict on a Job, if it has ended.

    :param gang: The Job; `None` only if the API server has no Job with this name, and not after a failed read.
    :param last_seen: The Job as it was last seen, which may say who has deleted it.
    """
    if gang is None:
        if last_seen is not None and last_seen.ref == ref and last_seen.deleted_by:
            return Verdict(VerdictKind.DELETED, REASON_DELETED_ON_PURPOSE, _deleted_by(last_seen))
        return Verdict(VerdictKind.DELETED, REASON_DELETED, f"Job {ref} with uid {ref.uid} is gone")
    if gang.ref.uid != ref.uid:
        other = gang.ref.uid
        message = f"Job {ref} now has uid {other}, not {ref.uid}"
        return Verdict(VerdictKind.REPLACED, REASON_REPLACED, message, other_uid=other)
    return _verdict_by_conditions(gang) or _verdict_by_deletion(gang, ref)


def _verdict_by_conditions(gang: StoredGang) -> Verdict | None:
    for found, kind in ((gang.complete_condition, VerdictKind.SUCCEEDED), (gang.failed_condition, VerdictKind.FAILED)):
        if found is not None and not _came_from_deletion(found, kind, gang):
            at = (gang.status.completion_time if kind is VerdictKind.SUCCEEDED else None) or found.last_transition_time
            limited_by = gang.time_limit or ""
            return Verdict(kind, found.reason, found.message, at, gang.status.completed_indexes, limited_by=limited_by)
    return None


def _came_from_deletion(found: Condition, kind: VerdictKind, gang: StoredGang) -> bool:
    """The Job failed after its deletion was requested. The Job controller counts pods that the deletion ends as
    failed."""
    requested = gang.deletion_requested_at
    if requested is None or found.last_transition_time is None or kind is VerdictKind.SUCCEEDED:
        return False
    return found.last_transition_time > requested


def _verdict_by_deletion(gang: StoredGang, ref: GangRef) -> Verdict | None:
    requested = gang.deletion_requested_at
    if requested is None:
        return None
    reason, message = REASON_DELETED, f"Job {ref} is being deleted"
    if gang.deleted_by:
        reason, message = REASON_DELETED_ON_PURPOSE, _deleted_by(gang)
    return Verdict(VerdictKind.DELETED, reason, message, requested, gang.status.completed_indexes)


def verdict_of_begun_deletion(gang: StoredGang) -> Verdict:
    """Return the verdict on a gang that was halted to be deleted on purpose, and whose Job still exists."""
    return Verdict(VerdictKind.DELETED, REASON_DELETED_ON_PURPOSE, _deleted_by(gang), deletion_has_only_begun=True)


def _deleted_by(gang: StoredGang) -> str:
    return f"Job {gang.ref} was deleted by {gang.deleted_by}"


GENERATION_AS_SUBMITTED: Final = 2
"""The creation of the Job is generation 1, and its start 2. Each further change of the spec adds 1."""


class Completeness(Enum):
    """Whether the known pods are all pods of a Job."""

    COMPLETE = auto()
    """The Job has, and had, no other pods: there is one pod for each rank, and each pod succeeded."""
    PENDING = auto()
    """According to the Job the pods are complete, but the watch of pods is behind the watch of Jobs."""
    UNKNOWN = auto()
    """Only the API server can tell. This is the answer for every Job that failed."""


def check_completeness(
    gang: StoredGang | None, pods: PodIndex, recorded: AbstractSet[str], ref: GangRef
) -> Completeness:
    """Compare a Job with the pods that are known, which may be old, and with the UIDs of recorded outcomes."""
    if gang is None or not _succeeded_as_submitted(gang, ref) or pods.ended_otherwise:
        return Completeness.UNKNOWN
    ranks = gang.status.succeeded
    if len(pods) < ranks:
        return Completeness.PENDING
    if not (pods.has_one_pod_per_rank and pods.has_exactly_ranks(ranks)):
        return Completeness.UNKNOWN
    if pods.succeeded < ranks:
        return Completeness.PENDING
    # This comparison is the most expensive one, so it comes last.
    return Completeness.COMPLETE if recorded <= pods.uids else Completeness.UNKNOWN


def _succeeded_as_submitted(gang: StoredGang, ref: GangRef) -> bool:
    """The Job has succeeded, its spec never changed, and each rank had one pod, which succeeded."""
    verdict = judge(gang, ref)
    return (
        verdict is not None
        and verdict.kind is VerdictKind.SUCCEEDED
        and 0 < gang.generation <= GENERATION_AS_SUBMITTED
        and 0 < (gang.completions or 0) == gang.parallelism == gang.status.succeeded
        and gang.status.failed == 0
    )
