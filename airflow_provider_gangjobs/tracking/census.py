"""Census: how a gang stands by what is seen of its pods, at a cost that follows what has changed.

A small gang is counted anew at each look. Of a large one the count is kept (see muster), and what has changed is taken
note of in portions, between which the loop's other work has its turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.pacing import Slices
from airflow_provider_gangjobs.gang.lifecycle import Observation, observe, observe_mustered
from airflow_provider_gangjobs.gang.muster import Muster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.objects.views import JobView, PodGroupView, PodView
    from airflow_provider_gangjobs.tracking.sights import Sights

COUNTED_ANEW_MAX: Final = 64
"""Pods. The count of a larger gang is kept; ten thousand small gangs can do without its memory."""
PORTION: Final = 250
"""Pods, some 5 ms."""
IN_THREAD_MIN: Final = 500
"""Pods that are counted anew in a thread: in passing it would keep the loop from other gangs for over 10 ms."""


class Census:
    """Of one gang, by its sights."""

    __slots__ = ("_muster", "_ref", "_seen", "_uncounted")

    def __init__(self, ref: GangRef, seen: Sights) -> None:
        self._ref = ref
        self._seen = seen
        self._muster: Muster | None = None
        self._uncounted: dict[str, PodView] = {}
        """Changed since the last look; several changes of one pod are one."""

    def note(self, changed: Sequence[PodView], gone: Sequence[PodView]) -> None:
        """These are the changes since the last call. To be told all of them."""
        if self._muster is None:
            return
        self._uncounted |= {pod.metadata.uid: pod for pod in changed}
        for pod in gone:
            self._uncounted.pop(pod.metadata.uid, None)
        self._muster.forget(gone)

    async def observe(self, job: JobView | None, podgroup: PodGroupView | None, **more: Any) -> Observation:
        """As lifecycle.observe, of what is seen now. Everything taken from the sights must have been noted."""
        if self._muster is None and self._seen.pod_count <= COUNTED_ANEW_MAX:
            return observe(job, self._seen.pods, podgroup, self._ref, **more)
        if self._muster is None:
            self._muster = Muster(self._ref)
            self._uncounted = {pod.metadata.uid: pod for pod in self._seen.pods}
        uncounted, self._uncounted = self._uncounted, {}
        async for some in portions(list(uncounted.values())):
            self._muster.see(some)
        if len(self._muster.troubled) <= COUNTED_ANEW_MAX:
            return observe_mustered(job, self._muster, podgroup, self._ref, **more)
        return await asyncio.to_thread(observe_mustered, job, self._muster, podgroup, self._ref, **more)


async def observe_listed(
    job: JobView | None, pods: Sequence[PodView], podgroup: PodGroupView | None, ref: GangRef, **more: Any
) -> Observation:
    """As lifecycle.observe, of pods that are not those in sight. Views never change, so a thread may read them."""
    if len(pods) < IN_THREAD_MIN:
        return observe(job, pods, podgroup, ref, **more)
    return await asyncio.to_thread(observe, job, pods, podgroup, ref, **more)


async def portions(pods: Sequence[PodView]) -> AsyncIterator[Sequence[PodView]]:
    """All of them, in parts between which the loop's other work has its turn."""
    slices = Slices()
    for first in range(0, len(pods), PORTION):
        yield pods[first : first + PORTION]
        await slices.breathe()
