"""Roll call: whether the pods in sight are all that a Job ever had, so that the server need not be asked for more.

The rule is strict, and only ever allows to skip a question. It rests on three facts, which docs/design.md argues:
a watch shows the history of pods in order, a Job whose spec did not change makes a pod for a rank only while
that rank has none that may still succeed, and a rank that has succeeded gets no other.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.verdict import Ended, judge

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.pod_index import Muster
    from airflow_provider_gangjobs.kube.views import JobView

GENERATION_AS_SUBMITTED: Final = 2
"""Created (1) and let run (2). Whoever suspended it, or changed its size, made another generation."""


class Roll(Enum):
    """What a roll call comes to."""

    ALL_ARE_HERE = auto()
    """No pod of the Job can exist, or have existed, beside these: one for each rank, and each succeeded."""
    SOME_TO_COME = auto()
    """By the Job's word it is so, and it may yet be seen: the watch of pods is behind that of Jobs."""
    UNCERTAIN = auto()
    """As with every failure. Only the server can tell."""


def call_roll(job: JobView | None, pods: Muster, recorded: AbstractSet[str], ref: GangRef) -> Roll:
    """Compare the Job with the pods in sight.

    `pods` are all that the server had at one moment, however long ago. `recorded` are the uids of those whose
    outcome is known.
    """
    if job is None or not _has_run_as_submitted(job, ref) or pods.ended_otherwise:
        return Roll.UNCERTAIN
    ranks = job.status.succeeded
    if len(pods) < ranks:
        return Roll.SOME_TO_COME
    if not (pods.has_one_pod_a_rank and pods.has_just_ranks(ranks)):
        return Roll.UNCERTAIN
    if pods.succeeded < ranks:
        return Roll.SOME_TO_COME
    return Roll.ALL_ARE_HERE if recorded <= pods.uids else Roll.UNCERTAIN  # the dearest question, so the last one


def _has_run_as_submitted(job: JobView, ref: GangRef) -> bool:
    """It has succeeded, its spec was never changed, and each rank had the one pod that succeeded."""
    verdict = judge(job, ref)
    return (
        verdict is not None
        and verdict.ended is Ended.SUCCEEDED
        and 0 < job.metadata.generation <= GENERATION_AS_SUBMITTED
        and 0 < (job.spec.completions or 0) == job.spec.parallelism == job.status.succeeded
        and job.status.failed == 0
    )
