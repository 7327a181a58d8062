"""A gang's harvester at work beside its follower, from when there is something to harvest.

Most gangs wait for hours and end in seconds: until the first pod has ended there is no harvester and no task.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_gangjobs.gang.state.pods import has_ended
from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester
from airflow_provider_gangjobs.tracking.harvest.statistics import harvest_totals
from airflow_provider_gangjobs.tracking.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Timing
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import PodView


class HarvestTask:
    """Makes and runs the harvester of one gang. To be stopped."""

    __slots__ = ("_client", "_harvester", "_ref", "_task", "_timing", "_wake")

    def __init__(self, client: Client, ref: GangRef, timing: Timing, wake: Callable[[], None]) -> None:
        """
        :param wake: Called if the harvester ends by itself, which is a fault: `check` tells it.
        """
        self._client = client
        self._ref = ref
        self._timing = timing
        self._wake = wake
        self._harvester: Harvester | None = None
        self._task: asyncio.Task[NoReturn] | None = None

    @property
    def harvester(self) -> Harvester:
        """The harvester; made now if it was not needed before."""
        if self._harvester is None:
            self._harvester = Harvester(self._client, Ledger(self._client, self._ref))
            harvest_totals().add(self._harvester)
        return self._harvester

    def offer(self, changed: Sequence[PodView], gone: Sequence[PodView]) -> None:
        """Have these harvested, if they are due. They must be the gang's own."""
        if self._harvester is None and not gone and not any(map(has_ended, changed)):
            return
        self.harvester.offer(changed)
        self.harvester.offer_gone(gone)
        if self._task is None:
            self._task = asyncio.create_task(self.harvester.run(timing=self._timing), name=f"harvest of {self._ref}")
            self._task.add_done_callback(lambda _: self._wake())

    def check(self) -> None:
        """Raises what stopped the harvester, if anything did."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """End its work; safe to repeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._harvester is not None:
            harvest_totals().remove(self._harvester)
