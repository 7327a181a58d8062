"""A task that follows a gang while the test runs, and the observations that it reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.tracking.follow import follow
from airflow_provider_gangjobs.tracking.gang_watch import Pace
from tests.provider.virtual_control_plane import VIRTUAL_TIMEOUT_S, VirtualControlPlane, loop_clock

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.gang.state.phase import Phase


def pace_of(options: dict[str, Any]) -> dict[str, Any]:
    """Take the parameters of `Pace` out of the options of a follower."""
    return {name: options.pop(name) for name in ("now", "clock") if name in options}


class Follower:
    """Run `follow()` for a gang of a virtual control plane, and keep what it reports."""

    def __init__(self, plane: VirtualControlPlane, ref: GangRef, **options: Any) -> None:
        self.reports: list[Observation] = []
        pace = Pace(**{"now": plane.clock.now, "clock": loop_clock()} | pace_of(options))
        options = {"report": self.reports.append, "pace": pace} | options
        self.task = asyncio.create_task(follow(plane.config, ref, **options))

    @property
    def phases(self) -> list[Phase]:
        """Return the reported phases in order, without repetitions."""
        seen = [report.phase for report in self.reports]
        return [phase for number, phase in enumerate(seen) if number == 0 or seen[number - 1] is not phase]

    async def event(self, within_s: float = VIRTUAL_TIMEOUT_S) -> GangEvent:
        async with asyncio.timeout(within_s):
            return await self.task

    async def kill(self) -> None:
        """Cancel the task, as when the process dies."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
