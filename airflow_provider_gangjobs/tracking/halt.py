"""Halt: suspends the Job of a gang whose deadline has passed, and records the reason on the Job.

The Job is not deleted, so its pods end and are harvested, and its ledger stays. If the triggerer crashes after the
halt, the next triggerer reads the note on the Job and reports the same deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import Conflict, Invalid, NotFound, is_of_another_uid
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.render.halting import halt_patch
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.verdict import Verdict, VerdictKind
from airflow_provider_gangjobs.gang.state.waiting import WaitCause

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job

_PREFIX: Final = "DeadlineExceeded"


@dataclass(frozen=True)
class DeadlineHalt:
    """Reason of a halt: the deadline of `phase` passed while the gang waited for `cause`."""

    phase: Phase
    cause: WaitCause
    message: str

    def __str__(self) -> str:
        return f"{_PREFIX}.{self.phase}.{self.cause}: {self.message}"


async def halt_after_deadline(client: Client, ref: GangRef, halted: DeadlineHalt, *, queued: bool = False) -> bool:
    """Suspend the Job and record the reason. The function is safe to repeat.

    :param queued: Kueue owns `spec.suspend` of the Job.
    :return: False if the Job is gone, or if another Job has its name.

    Raises:
        ClusterError: The request failed. The Job may or may not be suspended.
    """
    patch = halt_patch(str(halted), queued=queued)
    patch["metadata"]["uid"] = ref.uid
    try:
        await client.patch(JOBS, ref.name, ref.namespace, patch)
    except (NotFound, Conflict, Invalid) as exc:
        if not isinstance(exc, NotFound) and not is_of_another_uid(exc):
            raise
        return False
    return True


def is_halt_verdict(verdict: Verdict) -> bool:
    """Whether a queued Job failed because of the limits that `halt_after_deadline` left in it, and not by itself."""
    return verdict.kind is VerdictKind.FAILED and verdict.reason == _PREFIX


def read_deadline_halt(job: Job | None) -> DeadlineHalt | None:
    """Return the reason that `halt_after_deadline` recorded on the Job.

    The result is `None` if the Job was not halted, or if it was halted for another reason.
    """
    note = (job.halt_note or "") if job else ""
    kind, _, message = note.partition(": ")
    prefix, phase, cause = [*kind.split("."), "", ""][:3]
    if prefix != _PREFIX or phase not in set(Phase) or cause not in set(WaitCause):
        return None
    return DeadlineHalt(Phase(phase), WaitCause(cause), message)
