"""Completeness: whether the pods in the watch's cache are all pods that a Job ever had.

If they are, the final list of the gang's pods is not needed. The rule is strict: every doubt makes the caller list the
pods. The rule depends on three facts that docs/design.md explains: a watch shows changes of pods in order, a Job whose
spec did not change creates a pod for a rank only while no pod of that rank has succeeded or may still succeed, and a
rank that has succeeded gets no other pod.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.verdict import VerdictKind, judge

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.gang.state.pod_index import PodIndex

GENERATION_AS_SUBMITTED: Final = 2
"""The creation of the Job is generation 1, and the patch that unsuspends the Job is generation 2. A further suspension
or a change of the Job's size increases the generation."""


class Completeness(Enum):
    """Whether the known pods are all pods of a Job."""

    COMPLETE = auto()
    """The Job has, and had, no other pods: there is one pod for each rank, and each pod succeeded."""
    PENDING = auto()
    """According to the Job the pods are complete, but the watch of pods is behind the watch of Jobs."""
    UNKNOWN = auto()
    """Only the API server can tell. This is the answer for every Job that failed."""


def check_completeness(job: Job | None, pods: PodIndex, recorded: AbstractSet[str], ref: GangRef) -> Completeness:
    """Compare a Job with the pods that are known.

    :param pods: All pods that the API server had at one moment, which may be long ago.
    :param recorded: UIDs of the pods whose outcomes are recorded.
    """
    if job is None or not _succeeded_as_submitted(job, ref) or pods.ended_otherwise:
        return Completeness.UNKNOWN
    ranks = job.status.succeeded
    if len(pods) < ranks:
        return Completeness.PENDING
    if not (pods.has_one_pod_per_rank and pods.has_exactly_ranks(ranks)):
        return Completeness.UNKNOWN
    if pods.succeeded < ranks:
        return Completeness.PENDING
    # This comparison is the most expensive one, so it comes last.
    return Completeness.COMPLETE if recorded <= pods.uids else Completeness.UNKNOWN


def _succeeded_as_submitted(job: Job, ref: GangRef) -> bool:
    """The Job has succeeded, its spec never changed, and each rank had one pod, which succeeded."""
    verdict = judge(job, ref)
    return (
        verdict is not None
        and verdict.kind is VerdictKind.SUCCEEDED
        and 0 < job.generation <= GENERATION_AS_SUBMITTED
        and 0 < (job.completions or 0) == job.parallelism == job.status.succeeded
        and job.status.failed == 0
    )
