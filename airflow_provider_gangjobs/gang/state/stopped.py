"""Stopped: the mark on a Job that says who has stopped the gang, and why.

If a triggerer crashes after a stop, the next one reads the mark on the Job and reports the same deadline. The first
mark stays: whoever stops a gang that has a mark only ends its Job. A follower also marks a Job whose ranks
have ended by their main containers while other containers keep its pods running; every reader sees the end that this
mark names (`with_end_by_main`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.record import read_version
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.kube.views import JSON_ERRORS, Condition, end_condition, find_true_condition
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_STOPPED

if TYPE_CHECKING:
    from airflow_provider_gangjobs.exceptions import GangJobError
    from airflow_provider_gangjobs.kube.views import JobStatus, JobView

TEXT_CHARACTERS_MAX: Final = 2000
"""All annotations of an object share 256 KiB, and a person reads this text."""
REASON_STOPPED: Final = "Stopped"
REASON_JOB_DEADLINE: Final = "DeadlineExceeded"
"""Reason of a Job that failed because its activeDeadlineSeconds has passed. A stop sets this deadline."""
STOPPED_DEADLINE_S: Final = 0
"""activeDeadlineSeconds of a stopped Job, which the Job controller compares before it creates pods."""
REASON_SUCCEEDED: Final = "MainContainersSucceeded"
"""The main container of each rank has succeeded."""
REASON_FAILED: Final = "MainContainerFailed"
"""The main container of a rank has failed."""
EXECUTION_TIMEOUT: Final = "Deadline.execution"
"""Code of a gang whose task has reached its execution_timeout."""
VERSION: Final = 1
"""Version of the mark. A later version may have further fields and values."""


class Stopper(StrEnum):
    """Who has stopped a gang. The values are stored in Jobs."""

    DEADLINE = "deadline"
    """A follower, because a deadline of the task has passed."""
    QUEUE = "queue"
    """A follower, because Kueue has given the gang up."""
    MAIN_CONTAINERS = "main containers"
    """A follower, because the main containers have ended and other containers keep the pods running."""
    TASK = "task"
    USER = "user"
    SUBMISSION = "submission"
    """A submission that can never be completed."""
    CLEANUP = "cleanup"
    """The cleanup of gangs whose submission stopped half-way."""
    DELETION = "deletion"
    """A deletion of the gang or of its submission, which has begun."""
    UNKNOWN = "unknown"
    """The mark cannot be read."""


class Stopped(Struct, frozen=True, omit_defaults=True):
    """Who has stopped a gang, and why. The value of `ANNOTATION_STOPPED`, as JSON."""

    by: Stopper
    text: str = ""
    """The reason in a sentence."""
    category: Category = Category.HALTED
    code: str = REASON_STOPPED
    """The reason of events and errors, which is finer than the category."""
    phase: str = ""
    """The `Phase` whose deadline has passed."""
    data: dict[str, str] = {}
    """What the text is about, such as the image that cannot be pulled."""


BY_CLEANUP: Final = Stopped(
    Stopper.CLEANUP,
    "the submission stopped half-way and was not continued",
    Category.SUBMISSION_INCOMPLETE,
    "SubmissionIncomplete",
)
BY_DELETION: Final = Stopped(Stopper.DELETION, "the deletion of the gang has begun", code="Deleted")
BY_DELETION_OF_SUBMISSION: Final = Stopped(Stopper.DELETION, "its submission is being deleted")
BY_EXECUTION_TIMEOUT: Final = Stopped(
    Stopper.TASK, "The execution_timeout of the task passed", Category.DEADLINE_EXCEEDED, EXECUTION_TIMEOUT
)
BY_SUCCESS: Final = Stopped(
    Stopper.MAIN_CONTAINERS,
    "The main container of each rank had succeeded, and another container kept a pod running",
    Category.SUCCEEDED,
    REASON_SUCCEEDED,
)
BY_FAILURE: Final = Stopped(
    Stopper.MAIN_CONTAINERS,
    "The main container of a rank had failed, and another container kept its pod running",
    Category.APPLICATION_FAILED,
    REASON_FAILED,
)


def mark_patch(stopped: Stopped) -> dict[str, Any]:
    return {"metadata": {"annotations": {ANNOTATION_STOPPED: format_stopped(stopped)}}}


def stopped_by_user(reason: str) -> Stopped:
    return Stopped(Stopper.USER, reason)


def stopped_by_error(error: GangJobError) -> Stopped:
    """Return the mark of a gang whose submission can never be completed."""
    return Stopped(Stopper.SUBMISSION, str(error), code=type(error).__name__)


def format_stopped(stopped: Stopped) -> str:
    """Return the value of the annotation."""
    text = stopped.text[:TEXT_CHARACTERS_MAX]
    return msgspec.json.encode({"version": VERSION, **msgspec.to_builtins(replace(stopped, text=text))}).decode()


def parse_stopped(value: str) -> Stopped:
    """Return the mark that an annotation has. A mark that cannot be read says so, because the gang is stopped."""
    try:
        version = read_version(value)
        if version == VERSION:
            return msgspec.json.decode(value, type=Stopped)
    except JSON_ERRORS as error:
        return _unreadable(f"the Job is marked as stopped, and the mark cannot be read ({error})")
    return _unreadable(f"the Job has a mark of version {version}, which another version of the provider has written")


def _unreadable(text: str) -> Stopped:
    return Stopped(Stopper.UNKNOWN, text, Category.UNKNOWN)


def end_patch() -> dict[str, Any]:
    """Return the merge patch that lets a Job fail at once. A suspended Job creates no pod."""
    return {"spec": {"suspend": False, "activeDeadlineSeconds": STOPPED_DEADLINE_S}}


# -- the end by the main containers ----------------------------------------------------------------------------------


def with_end_by_main(job: JobView) -> JobView:
    """Return a Job with the conditions and counters of the end by the main containers that its mark names, if any.

    Until the Job has ended, the end is announced (`SuccessCriteriaMet`, `FailureTarget`).
    """
    stopped = end_by_main(job)
    if stopped is None or find_true_condition(job.status.conditions, "Complete"):
        return job
    ended = end_condition(job)
    announced = ended or find_true_condition(job.status.conditions, "FailureTarget")
    at = announced.last_transition_time if announced else None
    has_succeeded = stopped.code == REASON_SUCCEEDED
    kind = _KINDS[has_succeeded, ended is not None]
    others = tuple(one for one in job.status.conditions if one.type not in {"Failed", "FailureTarget"})
    found = Condition(kind, "True", stopped.code, stopped.text, at)
    status = replace(job.status, conditions=(*others, found))
    return replace(job, status=all_succeeded(status, job.spec.completions or 0, found) if has_succeeded else status)


def has_succeeded_by_main(job: JobView) -> bool:
    """Return whether the Job is marked: the main container of each rank has succeeded."""
    stopped = end_by_main(job)
    return stopped is not None and stopped.code == REASON_SUCCEEDED


def end_by_main(job: JobView) -> Stopped | None:
    """Return the mark of a Job that the provider has ended because its main containers had ended; `None` without it."""
    value = job.metadata.annotations.stopped
    stopped = parse_stopped(value) if value is not None else None
    return stopped if stopped is not None and stopped.by is Stopper.MAIN_CONTAINERS else None


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
