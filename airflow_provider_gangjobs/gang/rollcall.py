"""Roll call: whether the pods in sight are all that a Job ever had, so that the server need not be asked for more.

The rule is strict, and only ever allows to skip a question. It rests on three facts, which docs/design.md argues:
a watch shows the history of pods in order, a Job whose spec did not change makes a pod for a rank only while
that rank has none that may still succeed, and a rank that has succeeded gets no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.pods import rank_of
from airflow_provider_gangjobs.gang.verdict import Ended, judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.objects.views import JobView, PodView

GENERATION_AS_SUBMITTED: Final = 2
"""Created (1) and let run (2). Whoever suspended it, or changed its size, made another generation."""


def all_are_here(job: JobView | None, pods: Sequence[PodView], recorded: AbstractSet[str], ref: GangRef) -> bool:
    """True if no pod of the Job can exist, or have existed, beside these: one for each rank, and each succeeded.

    `pods` are the Job's own and all that the server had at one moment, however long ago. `recorded` are the
    uids of those whose outcome is known. False means that it is not certain, as with every failure.
    """
    verdict = judge(job, ref)
    if job is None or verdict is None or verdict.ended is not Ended.SUCCEEDED:
        return False
    ranks = job.spec.completions or 0
    return (
        0 < job.metadata.generation <= GENERATION_AS_SUBMITTED
        and ranks == job.spec.parallelism == job.status.succeeded == len(pods)
        and job.status.failed == 0
        and all(pod.status.phase == "Succeeded" for pod in pods)
        and {rank_of(pod) for pod in pods} == set(range(ranks))
        and recorded <= {pod.metadata.uid for pod in pods}
    )
