"""Tally: what all harvesters of one event loop have done, for metrics. Those that have finished stay counted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.loop_local import of_running_loop
from airflow_provider_gangjobs.tracking.harvest.harvester import HarvestStatistics

if TYPE_CHECKING:
    from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester

NOTHING = HarvestStatistics(backlog=0, recorded=0, released=0, failures=0)


def tally() -> Tally:
    """The running loop's tally."""
    return of_running_loop(Tally)


class Tally:
    """Sums of counters that never fall, and the present backlog."""

    def __init__(self) -> None:
        self._present: dict[Harvester, None] = {}
        self._past = NOTHING

    def begin(self, harvester: Harvester) -> None:
        """Count this harvester from now on."""
        self._present[harvester] = None

    def end(self, harvester: Harvester) -> None:
        """It has finished: what it has done stays counted, its backlog does not. Safe to repeat."""
        if harvester in self._present:
            del self._present[harvester]
            self._past = replace(_sum([self._past, harvester.statistics()]), backlog=0)

    def statistics(self) -> HarvestStatistics:
        return _sum([self._past, *(harvester.statistics() for harvester in self._present)])


def _sum(parts: list[HarvestStatistics]) -> HarvestStatistics:
    """Taken often over ten thousand parts, so without a copy of any."""
    return HarvestStatistics(
        backlog=sum(part.backlog for part in parts),
        recorded=sum(part.recorded for part in parts),
        released=sum(part.released for part in parts),
        failures=sum(part.failures for part in parts),
    )
