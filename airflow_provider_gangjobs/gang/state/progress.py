"""Progress: the number of ranks in each state, and the state of one pod.

A rank is a completion index. If a rank has several pods, the pod that has progressed most decides. Each pod of a Job
without indexes is a rank. The counters of a Job are not a count of pods, because the Job controller does not count pods
that were deleted and pods that are duplicates. `succeeded` and `failed` come from the Job, and all other numbers come
from the pods.
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
    """Number of ranks that run at the same time if no rank fails."""
    created: int = 0
    placed: int = 0
    started: int = 0
    """Ranks that have started, now or earlier."""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    held: int = 0
    """Pods that have the harvest finalizer, ended or not."""
    terminating: int = 0
    """Pods that are being deleted."""


class PodState(msgspec.Struct, frozen=True, gc=False):
    """State of one pod, as far as it changes the counts. A gang may have 100,000 pods."""

    rank: Hashable
    """Completion index of the pod, or its UID if it has no index."""
    is_placed: bool
    started: datetime | None
    has_started: bool
    has_ended: bool
    is_running: bool
    """The program of the rank runs."""
    has_succeeded: bool
    is_held: bool
    is_deleted: bool


def pod_state(pod: PodView) -> PodState:
    """Return the state of one pod."""
    rank = podutil.rank_of(pod)
    started = podutil.started_at(pod)
    has_succeeded = pod.status.phase == "Succeeded"
    has_started, has_ended = started is not None or has_succeeded, podutil.has_ended(pod)
    return PodState(
        rank=pod.metadata.uid if rank is None else rank,
        is_placed=bool(pod.spec.node_name),
        started=started,
        has_started=has_started,
        has_ended=has_ended,
        is_running=has_started and not has_ended and podutil.main_end(pod) is None,
        has_succeeded=has_succeeded,
        is_held=podutil.is_held(pod),
        is_deleted=pod.metadata.deletion_timestamp is not None,
    )


def all_started_at(states: Iterable[PodState], ranks: int) -> datetime | None:
    """Return the time at which the last of `ranks` ranks started for the first time.

    If pods of some ranks are gone, the function considers the ranks whose pods exist. It returns `None` if there are
    none.
    """
    first: dict[Hashable, datetime] = {}
    for state in states:
        if state.started is not None and (state.rank not in first or state.started < first[state.rank]):
            first[state.rank] = state.started
    return max(sorted(first.values())[: max(ranks, 1)], default=None)
