"""Marks on a Job of a gang, which are values of its annotations: how its ranks have ended by their main containers, how
often its queue has taken the gang back, and which of its runs count as time of assembly.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.state.pods import parse_number
from airflow_provider_gangjobs.kube.views import Condition, end_condition, find_true_condition
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_MAIN_CONTAINERS

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import JobStatus, JobView


REASON_SUCCEEDED: Final = "MainContainersSucceeded"
REASON_FAILED: Final = "MainContainerFailed"


class MainContainersEnd(StrEnum):
    """How the ranks of a Job have ended by their main containers. The values are stored in Jobs."""

    SUCCEEDED = "succeeded"
    """The main container of each rank has succeeded."""
    FAILED = "failed"
    """The main container of a rank has failed."""


def end_by_main_patch(end: MainContainersEnd) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {ANNOTATION_MAIN_CONTAINERS: str(end)}},
        "spec": {"activeDeadlineSeconds": 0},
    }


def with_end_by_main(job: JobView) -> JobView:
    """Return a Job with the conditions and counters of the end that its mark names, if it has a mark.

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
    found = Condition(kind, "True", reason, _MESSAGES[reason], at)
    status = replace(job.status, conditions=(*others, found))
    return replace(job, status=all_succeeded(status, job.spec.completions or 0, found) if has_succeeded else status)


def has_succeeded_by_main(job: JobView) -> bool:
    """Return whether the Job is marked: the main container of each rank has succeeded."""
    return job.metadata.annotations.main_containers == MainContainersEnd.SUCCEEDED


def all_succeeded(status: JobStatus, ranks: int, found: Condition) -> JobStatus:
    """Return the status with the counters of a success of all ranks.

    :param found: The condition that says so: `Complete`, or `SuccessCriteriaMet` if pods still run.
    """
    indexes = "0" if ranks <= 1 else f"0-{ranks - 1}"
    at = found.last_transition_time if found.type == "Complete" else None
    return replace(status, succeeded=ranks, failed=0, completed_indexes=indexes, completion_time=at)


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


class AssemblyBaseline(Struct, frozen=True):
    """From which of Kueue's counts on earlier runs count as time of assembly. Its text is the value of the
    annotation."""

    other_stops: int = 0
    """How often Kueue had stopped the gang for another reason than pods that did not become ready."""
    admitted_s: int = 0
    """For how long the gang had been admitted until then, in seconds."""

    def __str__(self) -> str:
        return f"{self.other_stops} {self.admitted_s}"


def parse_assembly_baseline(text: str | None) -> AssemblyBaseline:
    """Return the value of the annotation. Without a known value, all earlier runs count."""
    stops, _, admitted_s = (text or "").partition(" ")
    other_stops, before_s = parse_number(stops), parse_number(admitted_s)
    if other_stops is None or before_s is None:
        return AssemblyBaseline()
    return AssemblyBaseline(other_stops, before_s)
