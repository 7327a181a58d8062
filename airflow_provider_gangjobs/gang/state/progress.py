"""Progress: how many ranks exist, have a node, have started, have ended; and what of a pod counts for that.

A rank is a completion index; several pods may have tried it, and it has got as far as the farthest
of them. Pods of a Job without indexes are ranks of their own. Job counters are not a count of pods
(deleted and duplicate ones are never counted), so `succeeded` and `failed` are the Job's own words,
and the rest is counted from pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_gangjobs.gang.state import pods as podutil

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from datetime import datetime

    from airflow_provider_gangjobs.kube.views import PodView


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


class PodState(msgspec.Struct, frozen=True, gc=False):
    """What counts of one pod. A gang may have 100,000 of them."""

    rank: Hashable
    """Its completion index, or its uid if it has none."""
    is_placed: bool
    started: datetime | None
    has_started: bool
    has_ended: bool
    has_succeeded: bool
    is_held: bool
    is_deleted: bool


def pod_state(pod: PodView) -> PodState:
    """Look at one pod."""
    rank = podutil.rank_of(pod)
    started = podutil.started_at(pod)
    has_succeeded = pod.status.phase == "Succeeded"
    return PodState(
        rank=pod.metadata.uid if rank is None else rank,
        is_placed=bool(pod.spec.node_name),
        started=started,
        has_started=started is not None or has_succeeded,
        has_ended=podutil.has_ended(pod),
        has_succeeded=has_succeeded,
        is_held=podutil.is_held(pod),
        is_deleted=pod.metadata.deletion_timestamp is not None,
    )


def all_started_at(facts: Iterable[PodState], ranks: int) -> datetime | None:
    """When the last of `ranks` ranks started first; of fewer, if the pods of the others are gone."""
    first: dict[Hashable, datetime] = {}
    for one in facts:
        if one.started is not None and (one.rank not in first or one.started < first[one.rank]):
            first[one.rank] = one.started
    return max(sorted(first.values())[: max(ranks, 1)], default=None)
