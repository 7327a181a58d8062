"""Halt: give a gang's capacity back when a deadline has passed, and leave a note why.

The Job is suspended, not deleted: its pods end and are harvested, its ledger stays. The note on
the Job makes it safe to die here: whoever follows the gang next finishes what was begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import Conflict, Invalid, NotFound, is_of_another_uid
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.render.halting import halt_patch
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.verdict import Ended, Verdict
from airflow_provider_gangjobs.gang.state.waiting import Cause

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job

_PREFIX: Final = "DeadlineExceeded"


@dataclass(frozen=True)
class Halted:
    """Why a gang was halted: the deadline of `phase` passed while it waited for `cause`."""

    phase: Phase
    cause: Cause
    why: str

    def __str__(self) -> str:
        return f"{_PREFIX}.{self.phase}.{self.cause}: {self.why}"


async def halt(client: Client, ref: GangRef, halted: Halted, *, queued: bool = False) -> bool:
    """Suspend the Job and note why. False if it is gone, or another one has its name. Safe to repeat.

    `queued` says that Kueue owns its `suspend`.

    Raises:
        ClusterError: it may or may not be suspended.
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


def is_of_halt(verdict: Verdict) -> bool:
    """Whether a halted Job ended by what `halt` left to one that a queue lets run again, and not by itself."""
    return verdict.ended is Ended.FAILED and verdict.reason == _PREFIX


def halted_by_deadline(job: Job | None) -> Halted | None:
    """What `halt` noted on the Job; `None` if it was not halted, or for another reason."""
    note = (job.halt_note or "") if job else ""
    kind, _, why = note.partition(": ")
    prefix, phase, cause = [*kind.split("."), "", ""][:3]
    if prefix != _PREFIX or phase not in set(Phase) or cause not in set(Cause):
        return None
    return Halted(Phase(phase), Cause(cause), why)
