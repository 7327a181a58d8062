"""Settle: the last of the harvest, after which nobody looks after the gang's pods any more.

The pods are listed once more from the server, since a watch may lag behind the Job's end, unless a roll call
shows that there can be no others. Then every outcome is recorded and no pod is held, or it is said which could
not be. Pods that do not end (their node is dead, or their Job was deleted and they were orphaned) are given up
after a while: recorded as `unknown` and let go, because a finalizer that nobody watches would hold them for ever.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_gangjobs.cluster.clock import Backoff, Timing
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.gang.state.completeness import Completeness, check_completeness
from airflow_provider_gangjobs.gang.state.pods import has_ended, is_of
from airflow_provider_gangjobs.tracking.cluster_requests import gather_or_cancel, retry_until_answered
from airflow_provider_gangjobs.tracking.gang_observer import GangObserver, portions
from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester, retry_after_s
from airflow_provider_gangjobs.tracking.read.pods import list_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.job import Job
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.gang_watch import GangWatch

log = logging.getLogger(__name__)

QUIET_S: Final = 60.0
"""Without any progress for this long, the rest is given up."""
GRACE_MARGIN_S: Final = 15.0
"""Past a pod's own grace period, for its kubelet to report the end."""
GRACE_MAX_S: Final = 900.0
"""No pod is waited for longer, whatever its grace period."""
LOOK_AGAIN_S: Final = 5.0
LISTED_AT_ONCE_MAX: Final = 500
"""Pods, a page. A larger gang's list (600 MB for 100,000 pods) is not made if waiting a little may save it."""
PATIENCE_PER_POD_S: Final = 1e-3
PATIENCE_MAX_S: Final = 10.0
"""For a watch of pods that is behind that of Jobs."""
PAUSE_PER_POD_S: Final = 40e-6
PAUSE_MAX_S: Final = 1.0
"""Between two looks at a large gang that is not at rest yet. A look costs half a microsecond a pod: one per cent."""
DRAIN_ATTEMPTS_MAX: Final = 3
"""Before looking at the pods again, of which some may have gone."""


@dataclass(frozen=True)
class FinalHarvestResult:
    """How the harvest ended."""

    held: int = 0
    """Pods that could not be released."""
    notes: tuple[str, ...] = ()
    """What a user must know of it."""


class _Swept(NamedTuple):
    """What one sweep came to."""

    is_all: bool
    """All pods are known, recorded and released."""
    left: list[PodView]
    """Pods that are still held."""
    error: Exception | None
    """What hindered."""


class FinalHarvest:
    """Settles one gang."""

    def __init__(
        self,
        client: Client,
        ref: GangRef,
        harvester: Harvester,
        sights: GangWatch,
        census: GangObserver,
        timing: Timing,
        now: Callable[[], datetime],
    ) -> None:
        self.client = client
        self.ref = ref
        self.harvester = harvester
        self.sights = sights
        self.census = census
        self.timing = timing
        self.now = now
        self._listed: list[PodView] | None = None
        self._patient_until: float | None = None

    async def prepare(self, job: Job | None) -> None:
        """While the server is asked whether the Job has ended as it seems: read the ledger, harvest what is seen to
        have ended, and list the pods unless all of them are in sight, or too many to be listed before the watch has
        had its time.

        Raises:
            ClusterRefused: the pods cannot be listed any more.
        """
        if await self._roll(job) is Completeness.COMPLETE or self.sights.pod_count > LISTED_AT_ONCE_MAX:
            await self._finish_seen()
        else:
            self._listed, _ = await gather_or_cancel(self._list(), self._finish_seen())

    async def _finish_seen(self) -> None:
        await self._drain()
        await self.remember()  # if nothing had to be recorded, nobody has read the ledger yet

    async def remember(self) -> None:
        """Learn what earlier followers recorded. Without it the gang is told in the Job's words."""
        try:
            await self.harvester.remember()
        except ClusterError as exc:
            log.warning("gang %s: what is recorded of it could not be read: %s", self.ref, exc)

    async def settle(self, job: Job | None = None) -> FinalHarvestResult:
        """On return the harvest is over, and what it left undone is in the notes.

        Raises:
            ClusterRefused: the pods cannot be listed any more.
        """
        began = quiet_since = self.timing.monotonic()
        while True:
            before = self.harvester.statistics()
            swept = await self._sweep(job)
            if swept.is_all:
                return FinalHarvestResult()
            monotonic = self.timing.monotonic()
            if self.harvester.statistics().released > before.released:
                quiet_since = monotonic
            if monotonic - quiet_since >= QUIET_S and not self._in_grace(swept.left, monotonic - began):
                swept = await self._sweep(job, ask_first=True)
                return FinalHarvestResult() if swept.is_all else await self._give_up(swept.left)
            await self.sights.changed(self._look_again_s())
            if self.sights.pod_count > LISTED_AT_ONCE_MAX:
                await self.timing.sleep(min(self.sights.pod_count * PAUSE_PER_POD_S, PAUSE_MAX_S))

    async def _sweep(self, job: Job | None, *, ask_first: bool = False) -> _Swept:
        """Harvest what the watch shows, and when that leaves nothing, what the server lists, if that may be more.

        :param ask_first: List whatever the watch shows: it may have died without a word.
        """
        roll = await self._roll(job)
        error = await self._drain()
        left = await self._held_of(self.sights.pods)
        listed, self._listed = self._listed, None
        if listed is None or ask_first:
            is_harvested = not left and error is None
            if is_harvested and roll is Completeness.COMPLETE:
                return _Swept(is_all=True, left=[], error=None)
            waits = not is_harvested or (roll is Completeness.PENDING and self._is_patient())
            if waits and not ask_first:
                return _Swept(is_all=False, left=left, error=error)
            listed = await self._list()
        await self.census.correct(listed)
        async for some in portions(listed):
            self.harvester.offer(some)
        error = await self._drain()
        newest = {pod.metadata.uid: pod for pod in (*left, *listed)}
        left = await self._held_of(list(newest.values()))
        return _Swept(is_all=not left and error is None, left=left, error=error)

    async def _roll(self, job: Job | None) -> Completeness:
        """Take all that has changed, and call the roll of the pods that are in sight then."""
        await self.census.take()
        if not self.sights.shows_all_pods_of_a_moment:  # that of the line before
            return Completeness.UNKNOWN
        return check_completeness(job, await self.census.muster(), self.harvester.known, self.ref)

    def _is_patient(self) -> bool:
        """To list many pods costs more than to wait for a watch that is behind, for some seconds."""
        pods = self.sights.pod_count
        if pods <= LISTED_AT_ONCE_MAX or self.sights.pods_may_lag:
            return False
        now = self.timing.monotonic()
        if self._patient_until is None:
            self._patient_until = now + min(pods * PATIENCE_PER_POD_S, PATIENCE_MAX_S)
        return now < self._patient_until

    def _look_again_s(self) -> float:
        left_s = (self._patient_until or 0.0) - self.timing.monotonic()
        return min(left_s, LOOK_AGAIN_S) if left_s > 0 else LOOK_AGAIN_S

    async def _list(self) -> list[PodView]:
        """The gang's pods as the server has them, where that is not how they are in sight."""
        seen = self.sights.pods_by_uid
        return await retry_until_answered(
            lambda: list_pods(self.client, self.ref, seen, leave_out_cached=True), timing=self.timing
        )

    async def _held_of(self, pods: list[PodView]) -> list[PodView]:
        """Those of the gang that are still held."""
        holds, held = self.harvester.holds, []
        async for some in portions(pods):
            held += [pod for pod in some if holds(pod) and is_of(self.ref, pod)]
        return held

    async def _drain(self) -> Exception | None:
        backoff = Backoff(self.timing, base_s=0.5, cap_s=LOOK_AGAIN_S)
        error: Exception | None = None
        failures = 0
        while self.harvester.backlog and failures < DRAIN_ATTEMPTS_MAX:
            if error is not None:
                await self.timing.sleep(backoff.next(at_least_s=retry_after_s(error)))
            error = (await self.harvester.harvest()).error
            failures += error is not None
        return error

    def _in_grace(self, left: Iterable[PodView], waited_s: float) -> bool:
        """Some pod is being deleted and still has time to end in order."""
        latest = self.now() - timedelta(seconds=GRACE_MARGIN_S)
        ends = (pod.metadata.deletion_timestamp for pod in left if not has_ended(pod))
        return waited_s < GRACE_MAX_S and any(end is not None and end > latest for end in ends)

    async def _give_up(self, left: list[PodView]) -> FinalHarvestResult:
        waiting = [pod for pod in left if not has_ended(pod)]
        self.harvester.give_up(waiting)
        error = await self._drain()
        held = sum(map(self.harvester.holds, left))
        return FinalHarvestResult(held, tuple(_notes(len(waiting), held, error)))


def _notes(given_up: int, held: int, error: Exception | None) -> Iterable[str]:
    if given_up:
        yield f"{given_up} pods had not ended when the gang was over. Their outcome is unknown."
    if held or error is not None:
        yield (
            f"{held} pods are still held, because their outcome could not be stored: {error}. A task that succeeds "
            "reads the outcomes from the pods and frees the pods. Otherwise free the pods with `gangjobs release`."
        )
