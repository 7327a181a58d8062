"""Statistics: the sums over all harvesters of one event loop, for metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from airflow_provider_gangjobs.cluster.loop_local import loop_local


@dataclass(frozen=True)
class HarvestStatistics:
    """What a harvester, or all harvesters of a loop, have done so far."""

    backlog: int = 0
    """Pods that wait to be recorded or released."""
    recorded: int = 0
    """Outcomes written to the ledger."""
    released: int = 0
    """Pods from which the finalizer was removed."""
    failures: int = 0
    """Batches that met an error."""
    views: int = 0
    """Views of pods that were looked at. A pod has a view for each of its changes."""


class StatisticsSource(Protocol):
    """A harvester, as far as the totals need one."""

    def statistics(self) -> HarvestStatistics:
        """Return the counters of the harvester, and its backlog."""


def harvest_totals() -> HarvestTotals:
    """Return the totals of the running loop."""
    return loop_local(HarvestTotals)


class HarvestTotals:
    """Counters that never decrease, and the present backlog. The work of stopped harvesters stays counted."""

    def __init__(self) -> None:
        self._active: dict[StatisticsSource, None] = {}
        self._stopped = HarvestStatistics()

    def add(self, harvester: StatisticsSource) -> None:
        """Include a harvester in the totals."""
        self._active[harvester] = None

    def remove(self, harvester: StatisticsSource) -> None:
        """Keep the counters of a harvester that has stopped, without its backlog. Safe to repeat."""
        if harvester in self._active:
            del self._active[harvester]
            self._stopped = replace(_sum([self._stopped, harvester.statistics()]), backlog=0)

    def statistics(self) -> HarvestStatistics:
        """Return the sums over all harvesters, of which the backlog is that of the running ones."""
        return _sum([self._stopped, *(harvester.statistics() for harvester in self._active)])


def _sum(parts: list[HarvestStatistics]) -> HarvestStatistics:
    """Add up the parts, of which there may be ten thousand, without copying any of them."""
    return HarvestStatistics(
        backlog=sum(part.backlog for part in parts),
        recorded=sum(part.recorded for part in parts),
        released=sum(part.released for part in parts),
        failures=sum(part.failures for part in parts),
        views=sum(part.views for part in parts),
    )
