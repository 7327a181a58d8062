"""The harvest of a followed gang: a task that runs the harvester, and the end of the harvest.

Most gangs run for hours and end in seconds. Until the first pod has ended there is no harvester, no ledger and no task,
so a waiting gang costs little.

After the final harvest nobody follows the gang's pods any more. The pods are listed once more from the API server,
because the watch may lag behind the end of the Job, unless the pods that the watch shows are complete
(`gang.state.phase.has_all_pods`). On return all outcomes are recorded and no pod is held, or the result says which
could not be. Pods that do not end (their node is dead, or their Job was deleted and left them behind) are abandoned
after a while: they are recorded as `unknown` and released, because a finalizer that nobody removes would hold them
forever.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.gang.state.pods import has_ended, is_of
from airflow_provider_gangjobs.jobs.requests import gather_or_cancel, list_pods, retry_until_answered
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.tracking.gang_watch import in_batches
from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester, harvest_totals
from airflow_provider_gangjobs.tracking.harvest.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.gang_watch import GangObserver, ObservedPods
    from airflow_provider_gangjobs.tracking.harvest.harvester import LogReader


class HarvestTask:
    """Creates and runs the harvester of one gang. `stop` must be awaited at the end."""

    def __init__(self, client: Client, ref: GangRef, notify: Callable[[], None], logs: LogReader | None = None) -> None:
        """
        :param notify: Called if the harvester ends by itself, which is a fault. `check` then raises it.
        :param logs: Reads logs of pods before the pods are released.
        """
        self._logs = logs
        self.client = client
        self.ref = ref
        self._notify = notify
        self._harvester: Harvester | None = None
        self._task: asyncio.Task[NoReturn] | None = None

    @property
    def harvester(self) -> Harvester:
        """The harvester, which is created when it is first needed."""
        if self._harvester is None:
            self._harvester = Harvester(self.client, Ledger(self.client, self.ref), self._logs)
            harvest_totals().active.add(self._harvester)
        return self._harvester

    def enqueue(self, changed: Sequence[PodView], deleted: Sequence[PodView] = ()) -> None:
        """Have pods of the gang harvested, if they are due.

        :param changed: Pods as they are now. Those that have not ended are ignored.
        :param deleted: The last views of pods that do not exist any more.
        """
        if self._logs is not None:
            self._logs.observe(changed)
        if self._harvester is None and not deleted and not any(map(has_ended, changed)):
            return
        self.harvester.enqueue(changed)
        self.harvester.enqueue_deleted(deleted)
        self._start()

    async def drain(self) -> Exception | None:
        """Have all that is enqueued recorded and released now; see `Harvester.drain`."""
        return await self._harvester.drain() if self._harvester is not None else None

    def check(self) -> None:
        """Raise what ended the harvester, if anything did."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """End the task. Safe to repeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._harvester is not None:
            harvest_totals().active.discard(self._harvester)

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self.harvester.run(), name=f"harvest of {self.ref}")
            self._task.add_done_callback(lambda _: self._notify())


async def harvest_once(client: Client, ref: GangRef, pods: Sequence[PodView]) -> tuple[int, Exception | None]:
    """Record and release pods of a gang that nobody follows any more, as far as they have ended.

    Returns:
        The number of pods that are still held, and the last error if some could not be recorded or released.
    """
    harvester = Harvester(client, Ledger(client, ref))
    harvester.enqueue(pods)
    error = await harvester.drain()
    return sum(map(harvester.holds, pods)), error


log = logging.getLogger(__name__)

NO_PROGRESS_S: Final = 60.0
"""The remaining pods are abandoned when no pod was released for this long."""
GRACE_MARGIN_S: Final = 15.0
"""Added to a pod's own grace period, for its kubelet to report the end."""
GRACE_MAX_S: Final = 900.0
"""No pod is waited for longer, whatever its grace period."""
RETRY_S: Final = 5.0
LISTED_AT_ONCE_MAX: Final = 500
"""One page. A gang with more pods (a list of 100,000 pods is 600 MB) is listed only if waiting does not help."""
LAG_PER_POD_S: Final = 1e-3
LAG_MAX_S: Final = 10.0
"""How long to wait for a watch of pods that is behind the watch of Jobs: in seconds for each pod, and at most."""
PAUSE_PER_POD_S: Final = 40e-6
PAUSE_MAX_S: Final = 1.0
"""The pause between two passes over a large gang. A pass costs 0.5 us for each pod, about one per cent of the pause."""


@dataclass(frozen=True)
class FinalHarvestResult:
    """How the harvest ended."""

    held: int = 0
    """Pods that could not be released."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about what is missing."""


class FinalHarvest:
    """The final harvest of one gang."""

    def __init__(self, harvest: HarvestTask, observer: GangObserver, now: Callable[[], datetime]) -> None:
        self.client, self.ref, self.clock = harvest.client, harvest.ref, harvest.client.clock
        self.harvest = harvest
        self.watch = observer.watch
        self.observer = observer
        self.now = now
        self._listed: list[PodView] | None = None
        self._wait_for_watch_until: float | None = None

    async def prepare(self, job: StoredGang | None, pods: ObservedPods) -> None:
        """Begin while the API server is asked whether the Job has ended: read the ledger, harvest the pods that ended,
        and list the pods, unless they are complete, or too many to be listed before the watch had time to catch up.

        Raises:
            ClusterRefused: The pods cannot be listed any more.
        """
        are_all = pods.are_all(job, self.harvest.harvester.recorded, self.ref)
        if are_all or len(self.watch.pods_by_uid) > LISTED_AT_ONCE_MAX:
            await self._harvest_observed()
        else:
            self._listed, _ = await gather_or_cancel(self._list(), self._harvest_observed())

    async def _harvest_observed(self) -> None:
        await self.harvest.drain()
        await self.load_ledger()  # if nothing had to be recorded, the ledger has not been read yet

    async def load_ledger(self) -> None:
        """Read what earlier followers recorded. Without it the event is made from the Job alone."""
        try:
            await self.harvest.harvester.load_ledger()
        except ClusterError as exc:
            log.warning("gang %s: the recorded outcomes could not be read: %s", self.ref, exc)

    async def run(self, job: StoredGang | None = None, pods: ObservedPods | None = None) -> FinalHarvestResult:
        """Harvest until nothing is left or nothing can be done.

        :param job: The Job as the API server has it, if it has ended.
        :param pods: The pods of this look, if they were observed already.

        Raises:
            ClusterRefused: The pods cannot be listed any more.
        """
        began = progress_at = self.clock.monotonic()
        while True:
            before = len(self.harvest.harvester.released)
            is_done, held = await self._run_pass(job, pods or await self.observer.refresh())
            pods = None
            if is_done:
                return FinalHarvestResult()
            monotonic = self.clock.monotonic()
            if len(self.harvest.harvester.released) > before:
                progress_at = monotonic
            if monotonic - progress_at >= NO_PROGRESS_S and not self._in_grace(held, monotonic - began):
                is_done, held = await self._run_pass(job, await self.observer.refresh(), must_list=True)
                return FinalHarvestResult() if is_done else await self._abandon(held)
            await self.watch.changed(self._retry_in_s())
            if (count := len(self.watch.pods_by_uid)) > LISTED_AT_ONCE_MAX:
                await self.clock.sleep(min(count * PAUSE_PER_POD_S, PAUSE_MAX_S))

    async def _run_pass(
        self, job: StoredGang | None, pods: ObservedPods, *, must_list: bool = False
    ) -> tuple[bool, list[PodView]]:
        """Harvest the pods that the watch shows. When none of them is left and there may be others, list the pods from
        the API server and harvest them. Return whether all pods are known, recorded and released, and the pods that are
        still held.

        :param must_list: List the pods whatever the watch shows: the watch may be dead without an error.
        """
        are_all = pods.are_all(job, self.harvest.harvester.recorded, self.ref)
        error = await self.harvest.drain()
        held = await self._held_of(list(self.watch.pods_by_uid.values()))
        listed, self._listed = self._listed, None
        if listed is None or must_list:
            is_harvested = not held and error is None
            if is_harvested and are_all:
                return True, []
            waits = not is_harvested or (are_all is False and self._waits_for_watch())
            if waits and not must_list:
                return False, held
            listed = await self._list()
        await self.observer.add_listed(listed)
        async for batch in in_batches(listed):
            self.harvest.enqueue(batch)
        error = await self.harvest.drain()
        newest = {pod.metadata.uid: pod for pod in (*held, *listed)}
        held = await self._held_of(list(newest.values()))
        return not held and error is None, held

    def _waits_for_watch(self) -> bool:
        """Whether to wait some seconds for a watch that is behind, because listing many pods costs more."""
        pods = len(self.watch.pods_by_uid)
        if pods <= LISTED_AT_ONCE_MAX or self.watch.pods_may_lag:
            return False
        now = self.clock.monotonic()
        if self._wait_for_watch_until is None:
            self._wait_for_watch_until = now + min(pods * LAG_PER_POD_S, LAG_MAX_S)
        return now < self._wait_for_watch_until

    def _retry_in_s(self) -> float:
        left_s = (self._wait_for_watch_until or 0.0) - self.clock.monotonic()
        return min(left_s, RETRY_S) if left_s > 0 else RETRY_S

    async def _list(self) -> list[PodView]:
        cached = self.watch.pods_by_uid
        return await retry_until_answered(
            lambda: list_pods(self.client, self.ref, cached, leave_out_cached=True), clock=self.clock
        )

    async def _held_of(self, pods: list[PodView]) -> list[PodView]:
        holds, held = self.harvest.harvester.holds, []
        async for batch in in_batches(pods):
            held += [pod for pod in batch if holds(pod) and is_of(self.ref, pod)]
        return held

    def _in_grace(self, held: Iterable[PodView], waited_s: float) -> bool:
        latest = self.now() - timedelta(seconds=GRACE_MARGIN_S)
        ends = (pod.metadata.deletion_timestamp for pod in held if not has_ended(pod))
        return waited_s < GRACE_MAX_S and any(end is not None and end > latest for end in ends)

    async def _abandon(self, held: list[PodView]) -> FinalHarvestResult:
        running = [pod for pod in held if not has_ended(pod)]
        self.harvest.harvester.abandon(running)
        error = await self.harvest.drain()
        still_held = sum(map(self.harvest.harvester.holds, held))
        return FinalHarvestResult(still_held, tuple(notes_of(len(running), still_held, error)))


def notes_of(abandoned: int, held: int, error: Exception | None) -> Iterable[str]:
    """Yield what a person is told about a harvest that gave up.

    :param abandoned: How many pods had not ended.
    :param held: How many pods are still held.
    :param error: The last error of the harvest, if some pod could not be recorded or released.
    """
    if abandoned:
        whose = "Its" if abandoned == 1 else "Their"
        yield f"{pluralize(abandoned, 'pod')} had not ended when the gang was over. {whose} outcome is unknown."
    if held:
        are, whose, them = ("is", "its", "it") if held == 1 else ("are", "their", "them")
        why = f", because {whose} outcome could not be stored: {error}" if error is not None else ""
        yield (
            f"{pluralize(held, 'pod')} {are} still held{why}. A task that succeeds reads {whose} outcome and releases "
            f"{them}. Otherwise release {them} with `gangjobs release`."
        )
    elif error is not None:
        yield f"The harvest of the pods failed: {error}. No pod is held, and the outcome of some pods may be unknown."
