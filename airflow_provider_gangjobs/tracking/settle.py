"""Settle: the last of the harvest, after which nobody looks after the gang's pods any more.

The pods are listed once more from the server, since a watch may lag behind the Job's end, unless a roll call
shows that there can be no others. Then every outcome is recorded and no pod is held, or it is said which could
not be. Pods that do not end (their node is dead, or their Job was deleted and they were orphaned) are given up
after a while: recorded as `unknown` and let go, because a finalizer that nobody watches would hold them for ever.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.pacing import Backoff, Slices, Timing
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.gang.pods import has_ended, pods_of
from airflow_provider_gangjobs.gang.rollcall import all_are_here
from airflow_provider_gangjobs.objects.sharing import sharing
from airflow_provider_gangjobs.objects.views import PodView
from airflow_provider_gangjobs.tracking.asking import ask, together
from airflow_provider_gangjobs.tracking.harvest import Harvester, retry_after_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.objects.views import JobView
    from airflow_provider_gangjobs.tracking.sights import Sights

log = logging.getLogger(__name__)

QUIET_S: Final = 60.0
"""Without any progress for this long, the rest is given up."""
GRACE_MARGIN_S: Final = 15.0
"""Past a pod's own grace period, for its kubelet to report the end."""
GRACE_MAX_S: Final = 900.0
"""No pod is waited for longer, whatever its grace period."""
LOOK_AGAIN_S: Final = 5.0
PODS_IN_PASSING: Final = 500
"""Offered before others may run."""
DRAIN_ATTEMPTS_MAX: Final = 3
"""Before looking at the pods again, of which some may have gone."""
_NOTHING: Final[Mapping[str, PodView]] = {}


@dataclass(frozen=True)
class Settled:
    """How the harvest ended."""

    pods: tuple[PodView, ...] = ()
    """As listed last; those that were released since still show our finalizer."""
    held: int = 0
    """Pods that could not be released."""
    notes: tuple[str, ...] = ()
    """What a user must know of it."""


class Settler:
    """Settles one gang."""

    def __init__(
        self,
        client: Client,
        ref: GangRef,
        harvester: Harvester,
        sights: Sights,
        timing: Timing,
        now: Callable[[], datetime],
    ) -> None:
        self.client = client
        self.ref = ref
        self.harvester = harvester
        self.sights = sights
        self.timing = timing
        self.now = now
        self._listed: list[PodView] | None = None

    async def prepare(self, job: JobView | None) -> None:
        """While the server is asked whether the Job has ended as it seems: read the ledger, harvest what is seen to
        have ended, and list the pods unless all of them are in sight.

        Raises:
            ClusterRefuses: the pods cannot be listed any more.
        """
        if self._all_are_in_sight(job):
            await self._finish_seen()
        else:
            self._listed, _ = await together(self._list(), self._finish_seen())

    async def _finish_seen(self) -> None:
        await self._drain()
        await self.remember()  # if nothing had to be recorded, nobody has read the ledger yet

    async def remember(self) -> None:
        """Learn what earlier followers recorded. Without it the gang is told in the Job's words."""
        try:
            await self.harvester.remember()
        except ClusterError as exc:
            log.warning("gang %s: what is recorded of it could not be read: %s", self.ref, exc)

    async def settle(self, job: JobView | None = None) -> Settled:
        """On return the harvest is over, and what it left undone is in the notes.

        :param job: The Job as the server had it after its end, if it has ended by itself.

        Raises:
            ClusterRefuses: the pods cannot be listed any more.
        """
        began = quiet_since = self.timing.monotonic()
        while True:
            before = self.harvester.statistics()
            pods, left, error = await self._sweep(job)
            if not left and error is None:
                return Settled(tuple(pods))
            monotonic = self.timing.monotonic()
            if self.harvester.statistics().released > before.released:
                quiet_since = monotonic
            if monotonic - quiet_since >= QUIET_S and not self._in_grace(left, monotonic - began):
                return await self._give_up(pods, left)
            await self.sights.changed(LOOK_AGAIN_S)

    async def _sweep(self, job: JobView | None) -> tuple[list[PodView], list[PodView], Exception | None]:
        """Harvest what the watch shows, and when that leaves nothing, what the server lists, if that may be more."""
        self.harvester.offer_gone(pods_of(self.ref, self.sights.take_pods()[1]))
        pods = pods_of(self.ref, self.sights.pods)
        left, error = await self._harvest(pods)
        if left or error is not None or self._all_are_in_sight(job):
            return pods, left, error
        listed, self._listed = self._listed, None
        pods = await self._list() if listed is None else listed
        return pods, *(await self._harvest(pods))

    def _all_are_in_sight(self, job: JobView | None) -> bool:
        if not self.sights.shows_all_pods_of_a_moment:
            return False
        return all_are_here(job, pods_of(self.ref, self.sights.pods), self.harvester.known, self.ref)

    async def _list(self) -> list[PodView]:
        seen = self.sights.pods_by_uid
        return await ask(lambda: list_pods(self.client, self.ref, seen), timing=self.timing)

    async def _harvest(self, pods: list[PodView]) -> tuple[list[PodView], Exception | None]:
        """Those that are still held afterwards, and what hindered."""
        slices = Slices()
        for first in range(0, len(pods), PODS_IN_PASSING):
            self.harvester.offer(pods[first : first + PODS_IN_PASSING])
            await slices.breathe()
        error = await self._drain()
        return [pod for pod in pods if self.harvester.holds(pod)], error

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

    async def _give_up(self, pods: list[PodView], left: list[PodView]) -> Settled:
        waiting = [pod for pod in left if not has_ended(pod)]
        self.harvester.give_up(waiting)
        error = await self._drain()
        held = sum(map(self.harvester.holds, pods))
        return Settled(tuple(pods), held, tuple(_notes(len(waiting), held, error)))


def of_gang(ref: GangRef) -> str:
    """Label selector of everything that belongs to a gang."""
    return f"{LABEL_GANG}={ref.name}"


async def list_pods(client: Client, ref: GangRef, seen: Mapping[str, PodView] = _NOTHING) -> list[PodView]:
    """The gang's pods as the server has them now.

    :param seen: Views by uid that are kept already. Those that are still true are given again, not kept twice.

    Raises:
        ClusterError: they could not be listed.
    """
    found: dict[str, PodView] = {}
    one = sharing()
    pages = client.views(PodView, PODS, ref.namespace, label_selector=of_gang(ref))
    async with aclosing(pages):
        async for page in pages:
            for pod in page:
                meta = pod.metadata
                known = seen.get(meta.uid)
                if known is not None and known.metadata.resource_version == meta.resource_version:
                    found[meta.uid] = known
                else:
                    pod.share(one)
                    found[meta.uid] = pod
    return pods_of(ref, found.values())


def _notes(given_up: int, held: int, error: Exception | None) -> Iterable[str]:
    if given_up:
        yield f"{given_up} pods had not ended when the gang was over. Their outcome is unknown."
    if held or error is not None:
        yield f"{held} pods are still held, because their outcome could not be stored: {error}. Run `gangjobs release`."
