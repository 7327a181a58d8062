"""Ending a gang from outside: halt it, or delete it with all it owns. Both are safe to repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.render.halting import halt_patch
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.submission.requests import Api, Calls

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.clock import Timing
    from airflow_provider_gangjobs.exceptions import GangJobError
    from airflow_provider_gangjobs.gang.identity import GangRef

TIDIED: Final = "Tidied: it was submitted half, and nobody came back for it"
"""Reason of a halt by the janitor, which deletes the Job next."""
NOTE_CHARACTERS_MAX: Final = 2000
"""All annotations of an object share 256 KiB; this is to be read by people."""


async def halt(client: Api, ref: GangRef, *, reason: str, timing: Timing | None = None) -> bool:
    """Suspend the gang for good: its pods end and give their capacity back, its Job stays to be read.

    The next submission of the task is a new attempt. False if the Job is gone.
    """
    calls = Calls(client, ref.namespace, timing=timing)
    job = await calls.find(JOBS, ref.name)
    return job is not None and await calls.mark_job(ref, halt_patch(reason, queued=read_job(job).is_queued_by_kueue))


def note_of(error: GangJobError) -> str:
    """An error as the reason of a halt: its class, and what it says."""
    return f"{type(error).__name__}: {error}"[:NOTE_CHARACTERS_MAX]


async def delete(client: Api, ref: GangRef, *, timing: Timing | None = None) -> bool:
    """Delete the Job of exactly this uid, and in the background all it owns. False if it was gone."""
    return await Calls(client, ref.namespace, timing=timing).remove_job(ref)
