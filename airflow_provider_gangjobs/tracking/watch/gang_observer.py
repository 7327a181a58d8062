"""Gang observer: how a gang stands according to its watch, at a cost that depends on what has changed.

The pods of a small gang are indexed again for each observation. The index of a large gang is kept (see PodIndex), and
changes are processed in batches, between which other tasks of the loop run.

From which sizes on a follower treats a gang as large, and in which parts it processes the gang.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.state.observation import Observation, observe, observe_indexed
from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from airflow_provider_gangjobs.gang.state.pods import pods_of
from airflow_provider_gangjobs.gang.state.verdict import Completeness, check_completeness
from airflow_provider_gangjobs.gang.state.waiting import NO_EVIDENCE, Evidence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.kube.views import PodGroupView, PodView
    from airflow_provider_gangjobs.tracking.watch.gang_watch import GangWatch


@dataclass(frozen=True)
class SizeLimits:
    """The limits of one follower, in pods."""

    reindexed_max: int = 64
    """The index of a larger gang is kept. Ten thousand small gangs would need too much memory for their indexes."""
    batch_pods: int = 250
    """How many pods are processed before other tasks of the loop may run: some 5 ms of work."""
    listed_at_once_max: int = 500
    """One page. A larger gang (a list of 100,000 pods is 600 MB) is listed only if waiting does not help."""
    lag_per_pod_s: float = 1e-3
    """How long to wait for a watch of pods that is behind the watch of Jobs, in seconds for each pod."""


DEFAULT_LIMITS = SizeLimits()


@dataclass(frozen=True)
class Pace:
    """The clocks of one follower, and the sizes from which on it treats a gang as large."""

    now: Callable[[], datetime] | None = None
    """The time by which deadlines are judged. By default this is the API server's time, because the API server writes
    the times that deadlines count from."""
    clock: Clock | None = None
    """The clock of pauses and retries. By default the clock of the client."""
    limits: SizeLimits = DEFAULT_LIMITS


IN_THREAD_MIN: Final = 500
"""Pods that are observed in a thread. In the loop this would delay other gangs by more than 10 ms."""


@dataclass(frozen=True, slots=True)
class ObservedPods:
    """The pods of one gang at one look. The next look may change the index, so nobody keeps this any longer."""

    index: PodIndex
    is_complete_snapshot: bool
    """At some moment the gang had these pods and no others."""

    def completeness(self, job: Job | None, recorded: AbstractSet[str], ref: GangRef) -> Completeness:
        """Say whether these are all pods that the Job ever had; see `check_completeness`."""
        if not self.is_complete_snapshot:
            return Completeness.UNKNOWN
        return check_completeness(job, self.index, recorded, ref)


class GangObserver:
    """Observes one gang. The observer alone takes changes of pods from the watch, and enqueues them for the harvest."""

    __slots__ = ("_enqueue", "_index", "_not_indexed", "_ref", "limits", "watch")

    def __init__(
        self,
        ref: GangRef,
        watch: GangWatch,
        enqueue: Callable[[Sequence[PodView], Sequence[PodView]], None],
        *,
        limits: SizeLimits = DEFAULT_LIMITS,
    ) -> None:
        """
        :param enqueue: Called with pods of the gang that have changed, and with the last views of pods that are gone.
        """
        self._ref = ref
        self.watch = watch
        self._enqueue = enqueue
        self.limits = limits
        self._index: PodIndex | None = None
        self._not_indexed: dict[str, PodView] = {}
        """Pods that changed since they were indexed last. Several changes of one pod are indexed once."""

    async def refresh(self) -> ObservedPods:
        """Process all changes, and return the pods. Called once for each look at the gang."""
        await self.process_changes()
        # The watch is read before anything else is awaited, so it is of the moment of the last change.
        is_complete_snapshot = self.watch.is_complete_snapshot
        return ObservedPods(await self.indexed(), is_complete_snapshot)

    async def process_changes(self) -> None:
        """Enqueue all pods that have changed. On return nothing of the watch is left to process."""
        time_slice = loop_local(TimeSlice)
        while True:
            changed, gone = self.watch.pop_pod_changes(self.limits.batch_pods)
            if not changed and not gone:
                return
            self._note(changed, gone)
            self._enqueue(pods_of(self._ref, changed), pods_of(self._ref, gone))
            await time_slice.yield_if_due()

    def _note(self, changed: Sequence[PodView], gone: Sequence[PodView]) -> None:
        if self._index is None:
            return
        for pod in changed:
            self._not_indexed[pod.metadata.uid] = pod
        for pod in gone:
            self._not_indexed.pop(pod.metadata.uid, None)
        self._index.remove(gone)

    async def indexed(self) -> PodIndex:
        """Return the index of the pods that were processed. The next call may change the index."""
        if self._index is None:
            pods = self.watch.pods
            index = PodIndex(self._ref)
            async for batch in in_batches(pods, self.limits.batch_pods):
                index.update(batch)
            if len(pods) > self.limits.reindexed_max:
                self._index = index
            return index
        not_indexed, self._not_indexed = self._not_indexed, {}
        async for batch in in_batches(list(not_indexed.values()), self.limits.batch_pods):
            self._index.update(batch)
        return self._index

    async def add_listed(self, pods: Sequence[PodView]) -> None:
        """Index pods as the API server has listed them, which the watch does not show yet."""
        if pods:
            self._index = await self.indexed()
            self._not_indexed |= {pod.metadata.uid: pod for pod in pods}

    async def observe(
        self, pods: PodIndex, job: Job | None, podgroup: PodGroupView | None, evidence: Evidence = NO_EVIDENCE
    ) -> Observation:
        """Return the observation of indexed pods; see `observe_indexed`."""
        has_few_errors = pods.has_one_pod_per_rank and len(pods.pods_with_errors) <= self.limits.reindexed_max
        if len(pods) < IN_THREAD_MIN or has_few_errors:
            return observe_indexed(job, pods, podgroup, self._ref, evidence)
        return await asyncio.to_thread(observe_indexed, job, pods, podgroup, self._ref, evidence)


async def observe_listed(
    job: Job | None, pods: Sequence[PodView], podgroup: PodGroupView | None, ref: GangRef, evidence: Evidence
) -> Observation:
    """Return the observation of pods that were listed. Views never change, so a thread may read them."""
    if len(pods) < IN_THREAD_MIN:
        return observe(job, pods, podgroup, ref, evidence)
    return await asyncio.to_thread(observe, job, pods, podgroup, ref, evidence)


async def in_batches(pods: Sequence[PodView], batch_pods: int) -> AsyncIterator[Sequence[PodView]]:
    """Yield all pods in batches of at most `batch_pods`, between which other tasks of the loop run.

    All gangs of a loop share one time slice, so several walks in a row do not each get a slice of their own.
    """
    time_slice = loop_local(TimeSlice)
    for first in range(0, len(pods), batch_pods):
        yield pods[first : first + batch_pods]
        await time_slice.yield_if_due()
