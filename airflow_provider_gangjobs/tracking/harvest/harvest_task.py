"""Harvest task: the asyncio task that runs a gang's harvester, from when there is something to harvest.

Most gangs run for hours and end in seconds. Until the first pod has ended there is no harvester, no ledger and no task,
so a waiting gang costs little.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.gang.state.pods import has_ended
from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester, harvest_totals
from airflow_provider_gangjobs.tracking.harvest.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.harvest.harvester import LogReader


class HarvestTask:
    """Creates and runs the harvester of one gang. `stop` must be awaited at the end."""

    __slots__ = ("_client", "_clock", "_harvester", "_logs", "_notify", "_ref", "_task")

    def __init__(
        self,
        client: Client,
        ref: GangRef,
        clock: Clock,
        notify: Callable[[], None],
        logs: LogReader | None = None,
    ) -> None:
        """
        :param notify: Called if the harvester ends by itself, which is a fault. `check` then raises it.
        :param logs: Reads logs of pods before the pods are released.
        """
        self._logs = logs
        self._client = client
        self._ref = ref
        self._clock = clock
        self._notify = notify
        self._harvester: Harvester | None = None
        self._task: asyncio.Task[NoReturn] | None = None

    @property
    def harvester(self) -> Harvester:
        """The harvester, which is created when it is first needed."""
        if self._harvester is None:
            self._harvester = Harvester(self._client, Ledger(self._client, self._ref), self._logs)
            harvest_totals().add(self._harvester)
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

    async def record_decided(self, pods: Sequence[PodView]) -> Exception | None:
        """Record the outcomes of pods that still run, and whose main container has ended.

        Returns:
            `None` if they are recorded, or the last error.
        """
        self.harvester.enqueue_decided(pods)
        return await self.drain()

    async def drain(self) -> Exception | None:
        """Have all that is enqueued recorded and released now; see `Harvester.drain`."""
        if self._harvester is None or not self._harvester.backlog:
            return None
        self._start()
        self.check()
        return await self._harvester.drain()

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
            harvest_totals().remove(self._harvester)

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self.harvester.run(clock=self._clock), name=f"harvest of {self._ref}")
            self._task.add_done_callback(lambda _: self._notify())


async def harvest_once(client: Client, ref: GangRef, pods: Sequence[PodView]) -> tuple[int, Exception | None]:
    """Record and release pods of a gang that nobody follows any more, as far as they have ended.

    Returns:
        The number of pods that are still held, and the last error if some could not be recorded or released.
    """
    task = HarvestTask(client, ref, Clock(), notify=lambda: None)
    try:
        task.enqueue(pods)
        error = await task.drain()
        return sum(map(task.harvester.holds, pods)), error
    finally:
        await task.stop()
