"""Main containers: the mark of a Job that the provider has ended because of sidecars, and the end that it names.

The rules of `gang.state.sidecars` decide which Job is marked. The Job controller deletes the pods of a marked Job, and
the Job fails by a deadline. Every reader of a Job reads it by `with_end_by_main`, so every reader sees the same end.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.kube.labels import ANNOTATION_MAIN_CONTAINERS
from airflow_provider_gangjobs.kube.views import Condition, JobView, find_true_condition

REASON_SUCCEEDED: Final = "MainContainersSucceeded"
REASON_FAILED: Final = "MainContainerFailed"


class MainContainersEnd(StrEnum):
    """How the ranks of a Job have ended by their main containers. The values are stored in Jobs."""

    SUCCEEDED = "succeeded"
    """The main container of each rank has succeeded."""
    FAILED = "failed"
    """The main container of a rank has failed."""


def end_by_main_patch(end: MainContainersEnd) -> dict[str, Any]:
    """Return the merge patch that marks a Job and ends its pods."""
    return {
        "metadata": {"annotations": {ANNOTATION_MAIN_CONTAINERS: str(end)}},
        "spec": {"activeDeadlineSeconds": 0},
    }


def with_end_by_main(job: JobView) -> JobView:
    """Return a Job with the conditions and counters of the end that its mark names. Other Jobs are returned unchanged.

    Until the Job has ended, the end is announced (`SuccessCriteriaMet`, `FailureTarget`).
    """
    mark = job.metadata.annotations.main_containers
    if mark not in set(MainContainersEnd) or find_true_condition(job.status.conditions, "Complete"):
        return job
    ended = end_condition(job)
    announced = ended or find_true_condition(job.status.conditions, "FailureTarget")
    at = announced.last_transition_time if announced else None
    has_succeeded = mark == MainContainersEnd.SUCCEEDED
    kind = _KINDS[has_succeeded, ended is not None]
    others = tuple(one for one in job.status.conditions if one.type not in {"Failed", "FailureTarget"})
    reason = REASON_SUCCEEDED if has_succeeded else REASON_FAILED
    status = replace(job.status, conditions=(*others, Condition(kind, "True", reason, _MESSAGES[reason], at)))
    if has_succeeded:
        ranks = job.spec.completions or 0
        indexes = "0" if ranks == 1 else f"0-{ranks - 1}"
        completed_at = at if ended else None
        status = replace(status, succeeded=ranks, failed=0, completed_indexes=indexes, completion_time=completed_at)
    return replace(job, status=status)


_KINDS: Final = {
    (True, True): "Complete",
    (True, False): "SuccessCriteriaMet",
    (False, True): "Failed",
    (False, False): "FailureTarget",
}
_MESSAGES: Final = {
    REASON_SUCCEEDED: "The main container of each rank had succeeded, and another container kept a pod running",
    REASON_FAILED: "The main container of a rank had failed, and another container kept its pod running",
}


def end_condition(job: JobView) -> Condition | None:
    """Return the condition with which a Job has ended; `None` if it has not."""
    found = (find_true_condition(job.status.conditions, kind) for kind in ("Complete", "Failed"))
    return next((one for one in found if one is not None), None)
