"""The record of a submission, as the cluster keeps it: in the Job and nowhere else. Pure.

A Job tells by itself how far it is, without its pods: what it cannot tell (what a pod waits for, which
rank failed) is told by following the gang.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import (
    ANNOTATION_DELIVERED,
    ANNOTATION_GANG,
    ANNOTATION_HALTED,
    ANNOTATION_SPEC_HASH,
    ANNOTATION_TRIGGER_ID,
)
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.submission.jobs import (
    Job,
    annotation,
    attempt_number,
    has_condition,
    is_left_to_others,
    is_suspended,
    never_ran,
    ref_of,
)

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef


class OperationState(StrEnum):
    """Whether a submission is still on its way."""

    IN_PROGRESS = "in progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The gang failed, was halted, or could never be submitted as a whole. It can be submitted again."""
    DELETING = "deleting"


@dataclass(frozen=True)
class FailureCause:
    """Why a submission failed."""

    reason: str
    """Of the Job's Failed condition; or the class of the error that stopped the submission; or `Halted`."""
    message: str


@dataclass(frozen=True)
class SubmissionRecord:
    """One submission as it stands."""

    trigger_id: str
    ref: GangRef
    attempt: int
    state: OperationState
    phase: Phase
    decision: str
    """As in the Job's annotation: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    spec_hash: str
    workers: int
    ready: int
    """Ranks that run and are ready."""
    submitted_at: datetime
    started_at: datetime | None = None
    """When the Job was let run."""
    ended_at: datetime | None = None
    delivered_at: datetime | None = None
    error: FailureCause | None = None


def record_of(job: Job) -> SubmissionRecord:
    """What a stored Job says about its submission."""
    status = job.get("status") or {}
    phase = phase_of(job)
    return SubmissionRecord(
        trigger_id=annotation(job, ANNOTATION_TRIGGER_ID) or "",
        ref=ref_of(job),
        attempt=attempt_number(job),
        state=_state(job, phase),
        phase=phase,
        decision=annotation(job, ANNOTATION_GANG) or "",
        spec_hash=annotation(job, ANNOTATION_SPEC_HASH) or "",
        workers=_workers(job),
        ready=int(status.get("ready") or 0),
        submitted_at=datetime.fromisoformat(job["metadata"]["creationTimestamp"]),
        started_at=_time(status.get("startTime")),
        ended_at=_ended_at(job),
        delivered_at=_time(annotation(job, ANNOTATION_DELIVERED)),
        error=_error(job),
    )


def phase_of(job: Job) -> Phase:
    """How far a gang is, as far as its Job alone can tell."""
    status = job.get("status") or {}
    if "deletionTimestamp" in job["metadata"]:
        return Phase.DELETED
    for condition, phase in _FINAL:
        if has_condition(job, condition):
            return phase
    pods = int(status.get("active") or 0) + int(status.get("terminating") or 0)
    if annotation(job, ANNOTATION_HALTED) is not None:
        return Phase.FINISHING if pods else Phase.FAILED
    if is_suspended(job):
        return Phase.SUBMITTED if never_ran(job) and not is_left_to_others(job) else Phase.QUEUED
    up = sum(int(status.get(name) or 0) for name in ("ready", "succeeded", "failed"))
    if up >= _workers(job):
        return Phase.RUNNING
    return Phase.ASSEMBLING if status.get("startTime") else Phase.SUBMITTED


_FINAL: Final = (
    ("Complete", Phase.SUCCEEDED),
    ("Failed", Phase.FAILED),
    ("SuccessCriteriaMet", Phase.FINISHING),
    ("FailureTarget", Phase.FINISHING),
)


def _state(job: Job, phase: Phase) -> OperationState:
    if annotation(job, ANNOTATION_HALTED) is not None and phase is Phase.FINISHING:
        return OperationState.FAILED
    return _STATE_OF.get(phase, OperationState.IN_PROGRESS)


_STATE_OF: Final = {
    Phase.SUCCEEDED: OperationState.SUCCEEDED,
    Phase.FAILED: OperationState.FAILED,
    Phase.DELETED: OperationState.DELETING,
}


def _error(job: Job) -> FailureCause | None:
    failed = _condition(job, "Failed") or _condition(job, "FailureTarget")
    if failed is not None:
        return FailureCause(failed.get("reason", ""), failed.get("message", ""))
    note = annotation(job, ANNOTATION_HALTED)
    if note is None:
        return None
    kind, colon, why = note.partition(": ")
    return FailureCause(kind, why) if colon and " " not in kind else FailureCause("Halted", note)


def _ended_at(job: Job) -> datetime | None:
    status = job.get("status") or {}
    failed = _condition(job, "Failed") or {}
    return _time(status.get("completionTime") or failed.get("lastTransitionTime"))


def _condition(job: Job, kind: str) -> dict[str, Any] | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((dict(c) for c in conditions if c["type"] == kind and c["status"] == "True"), None)


def _workers(job: Job) -> int:
    spec = job["spec"]
    return int(spec.get("completions") or spec.get("parallelism") or 1)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
