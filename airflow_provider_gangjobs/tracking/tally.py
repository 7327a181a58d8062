"""Tally: what all harvesters of one event loop have done, for metrics. Those that have finished stay counted."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.per_loop import of_running_loop
from airflow_provider_gangjobs.tracking.harvest import HarvestStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.tracking.harvest import Harvester

NOTHING = HarvestStatistics(backlog=0, recorded=0, released=0, failures=0)


def tally() -> Tally:
    """The running loop's tally."""
    return of_running_loop(Tally)


class Tally:
    """Sums of counters that never fall, and the present backlog."""

    def __init__(self) -> None:
        self._present: list[Harvester] = []
        self._past = NOTHING

    @contextmanager
    def counting(self, harvester: Harvester) -> Iterator[None]:
        """Count this harvester from now on. Its backlog counts for the length of the block."""
        self._present.append(harvester)
        try:
            yield
        finally:
            self._present.remove(harvester)
            done = harvester.statistics()
            self._past = _sum([self._past, HarvestStatistics(0, done.recorded, done.released, done.failures)])

    def statistics(self) -> HarvestStatistics:
        return _sum([self._past, *(harvester.statistics() for harvester in self._present)])


def _sum(parts: list[HarvestStatistics]) -> HarvestStatistics:
    return HarvestStatistics(*map(sum, zip(*map(astuple, parts), strict=True)))
