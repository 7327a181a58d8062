"""GangObserver: how a gang stands by what is seen of its pods, at a cost that follows what has changed.

A small gang is counted anew at each look. Of a large one the count is kept (see muster), and what has changed is taken
note of in portions, between which the loop's other work has its turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.clock import Slices
from airflow_provider_gangjobs.cluster.loop_local import of_running_loop
from airflow_provider_gangjobs.gang.state.observation import Observation, observe, observe_indexed
from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from airflow_provider_gangjobs.gang.state.pods import pods_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.kube.views import PodGroupView, PodView
    from airflow_provider_gangjobs.tracking.gang_watch import GangWatch

COUNTED_ANEW_MAX: Final = 64
"""Pods. The count of a larger gang is kept; ten thousand small gangs can do without its memory."""
PORTION: Final = 250
"""Pods, some 5 ms."""
IN_THREAD_MIN: Final = 500
"""Pods that are counted anew in a thread: in passing it would keep the loop from other gangs for over 10 ms."""


class GangObserver:
    """Of one gang, by its sights. What has changed is taken from them here alone, and handed on to be harvested."""

    __slots__ = ("_muster", "_offer", "_ref", "_seen", "_uncounted")

    def __init__(
        self, ref: GangRef, seen: GangWatch, offer: Callable[[Sequence[PodView], Sequence[PodView]], None]
    ) -> None:
        """
        :param offer: Told of pods of the gang's own that have changed, and of those that have gone.
        """
        self._ref = ref
        self._seen = seen
        self._offer = offer
        self._muster: PodIndex | None = None
        self._uncounted: dict[str, PodView] = {}
        """Taken since the last count; several changes of one pod are one."""

    async def take(self) -> None:
        """Take from the sights all that has changed. On return, what was taken is how the sights are at this moment."""
        slices = of_running_loop(Slices)
        while True:
            changed, gone = self._seen.take_pods(PORTION)
            if not changed and not gone:
                return
            self._note(changed, gone)
            self._offer(pods_of(self._ref, changed), pods_of(self._ref, gone))
            await slices.breathe()

    def _note(self, changed: Sequence[PodView], gone: Sequence[PodView]) -> None:
        if self._muster is None:
            return
        for pod in changed:
            self._uncounted[pod.metadata.uid] = pod
        for pod in gone:
            self._uncounted.pop(pod.metadata.uid, None)
        self._muster.remove(gone)

    async def muster(self) -> PodIndex:
        """The pods as they were taken last, counted. Not to be kept: the next count may change it."""
        if self._muster is None:
            pods = self._seen.pods
            muster = PodIndex(self._ref)
            async for some in portions(pods):
                muster.update(some)
            if len(pods) > COUNTED_ANEW_MAX:
                self._muster = muster
            return muster
        uncounted, self._uncounted = self._uncounted, {}
        async for some in portions(list(uncounted.values())):
            self._muster.update(some)
        return self._muster

    async def correct(self, pods: Sequence[PodView]) -> None:
        """Count these pods as they are here, which the sights do not show yet."""
        if pods:
            self._muster = await self.muster()
            self._uncounted |= {pod.metadata.uid: pod for pod in pods}

    async def observe(self, job: Job | None, podgroup: PodGroupView | None, **more: Any) -> Observation:
        """As lifecycle.observe, of what was taken last."""
        muster = await self.muster()
        if len(muster) < IN_THREAD_MIN or (muster.has_one_pod_a_rank and len(muster.troubled) <= COUNTED_ANEW_MAX):
            return observe_indexed(job, muster, podgroup, self._ref, **more)
        return await asyncio.to_thread(observe_indexed, job, muster, podgroup, self._ref, **more)


async def observe_listed(
    job: Job | None, pods: Sequence[PodView], podgroup: PodGroupView | None, ref: GangRef, **more: Any
) -> Observation:
    """As lifecycle.observe, of pods that are not those in sight. Views never change, so a thread may read them."""
    if len(pods) < IN_THREAD_MIN:
        return observe(job, pods, podgroup, ref, **more)
    return await asyncio.to_thread(observe, job, pods, podgroup, ref, **more)


async def portions(pods: Sequence[PodView]) -> AsyncIterator[Sequence[PodView]]:
    """All of them, in parts between which the loop's other work has its turn.

    One measure for the whole loop: what follows another such walk, of this gang or of the next, has no slice to itself.
    """
    slices = of_running_loop(Slices)
    for first in range(0, len(pods), PORTION):
        yield pods[first : first + PORTION]
        await slices.breathe()
