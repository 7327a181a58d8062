"""Halt: the rules of a Job that is suspended permanently, with the reason in an annotation of the Job.

The pods of a halted gang end and are harvested. The Job and its ledger stay. If a triggerer halts a gang after a
deadline and then crashes, the next triggerer reads the annotation and reports the same deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import ANNOTATION_HALTED
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.verdict import Verdict, VerdictKind
from airflow_provider_gangjobs.gang.state.waiting import WaitCause

if TYPE_CHECKING:
    from airflow_provider_gangjobs.exceptions import GangJobError
    from airflow_provider_gangjobs.gang.state.job import Job

CLEANUP_HALT_REASON: Final = "Tidied: it was submitted half, and nobody came back for it"
"""The reason of a halt by the cleanup, which deletes the Job next. Stored in Jobs and compared, so never changed."""
DELETION_HALT_REASON: Final = "its submission is being deleted"
NOTE_CHARACTERS_MAX: Final = 2000
"""All annotations of an object share 256 KiB, and a person reads this note."""

_DEADLINE_PREFIX: Final = "DeadlineExceeded"


@dataclass(frozen=True)
class DeadlineHalt:
    """Reason of a halt: the deadline of `phase` passed while the gang waited for `cause`."""

    phase: Phase
    cause: WaitCause
    message: str

    def __str__(self) -> str:
        return f"{_DEADLINE_PREFIX}.{self.phase}.{self.cause}: {self.message}"


def halt_patch(reason: str, *, queued: bool = False) -> dict[str, Any]:
    """Return the merge patch that suspends a Job permanently.

    :param reason: The value of `ANNOTATION_HALTED`.
    :param queued: Kueue owns `spec.suspend`. Kueue resumes an admitted Job as soon as somebody suspends it, and a
        waiting Job when it is admitted. The patch therefore also sets parallelism to 0 and activeDeadlineSeconds to 1.
        If Kueue resumes the Job, the Job fails with `DeadlineExceeded` and returns its quota.
    """
    limits: dict[str, Any] = {"parallelism": 0, "activeDeadlineSeconds": 1} if queued else {}
    return {"metadata": {"annotations": {ANNOTATION_HALTED: reason}}, "spec": {"suspend": True, **limits}}


def format_halt_note(error: GangJobError) -> str:
    """Return the class and the message of an error, as the reason of a halt."""
    return f"{type(error).__name__}: {error}"[:NOTE_CHARACTERS_MAX]


def read_deadline_halt(job: Job | None) -> DeadlineHalt | None:
    """Return the deadline for which the Job was halted.

    The result is `None` if the Job was not halted, or if it was halted for another reason.
    """
    note = (job.halt_note or "") if job else ""
    kind, _, message = note.partition(": ")
    prefix, phase, cause = [*kind.split("."), "", ""][:3]
    if prefix != _DEADLINE_PREFIX or phase not in set(Phase) or cause not in set(WaitCause):
        return None
    return DeadlineHalt(Phase(phase), WaitCause(cause), message)


def is_halt_verdict(verdict: Verdict) -> bool:
    """Whether a queued Job failed because of the limits that `halt_patch` set in it, and not by itself."""
    return verdict.kind is VerdictKind.FAILED and verdict.reason == _DEADLINE_PREFIX
