"""Progress: how many ranks exist, have a node, have started, have ended. Pure counting.

A rank is a completion index; several pods may have tried it, and it has got as far as the farthest
of them. Pods of a Job without indexes are ranks of their own. Job counters are not a count of pods
(deleted and duplicate ones are never counted), so `succeeded` and `failed` are the Job's own words,
and the rest is counted from pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang import pods as pod_facts
from airflow_provider_gangjobs.gang.indexes import parse_indexes

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.objects.views import JobView, PodView


@dataclass(frozen=True)
class Counts:
    """Numbers of ranks, except `held` and `terminating`, which are pods."""

    ranks: int = 0
    """How many run side by side when all is well."""
    created: int = 0
    placed: int = 0
    started: int = 0
    """Now or ever."""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    held: int = 0
    """Pods with our finalizer, ended or not."""
    terminating: int = 0
    """Pods being deleted."""


def count(job: JobView | None, pods: Sequence[PodView]) -> Counts:
    """Count the ranks of a gang from its Job and the pods that are seen now."""
    placed = {_rank_key(pod) for pod in pods if pod.spec.node_name}
    started = {_rank_key(pod) for pod in pods if has_started(pod)}
    running = {_rank_key(pod) for pod in pods if has_started(pod) and not pod_facts.has_ended(pod)}
    done = parse_indexes(job.status.completed_indexes) if job else frozenset[int]()
    started_ever = max(len(started | done), _ended(job) + len(running))
    ranks = ranks_of(job) if job else len({_rank_key(pod) for pod in pods})
    return Counts(
        ranks=ranks,
        created=max(len(done.union(_rank_key(pod) for pod in pods)), min(started_ever, ranks)),
        placed=max(len(placed | done), min(started_ever, ranks)),
        started=started_ever,
        running=len(running),
        succeeded=job.status.succeeded if job else 0,
        failed=job.status.failed if job else 0,
        held=sum(map(pod_facts.is_held, pods)),
        terminating=sum(pod.metadata.deletion_timestamp is not None for pod in pods),
    )


def ranks_of(job: JobView) -> int:
    """How many ranks run side by side: parallelism, but no more than completions."""
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    completions = parallelism if job.spec.completions is None else job.spec.completions
    return min(parallelism, completions)


def has_started(pod: PodView) -> bool:
    """The rank's program has begun, now or earlier."""
    return pod_facts.started_at(pod) is not None or pod.status.phase == "Succeeded"


def all_started_at(pods: Sequence[PodView], ranks: int) -> datetime | None:
    """When the last of `ranks` ranks started first; of fewer, if the pods of the others are gone."""
    first: dict[Hashable, datetime] = {}
    for pod in pods:
        at = pod_facts.started_at(pod)
        key = _rank_key(pod)
        if at is not None and (key not in first or at < first[key]):
            first[key] = at
    return max(sorted(first.values())[: max(ranks, 1)], default=None)


def _ended(job: JobView | None) -> int:
    return job.status.succeeded + job.status.failed if job else 0


def _rank_key(pod: PodView) -> Hashable:
    rank = pod_facts.rank_of(pod)
    return pod.metadata.uid if rank is None else rank
