"""A task that follows a gang while the test runs, and the observations that it reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.tracking.follow import follow
from tests.provider.virtual_control_plane import VIRTUAL_TIMEOUT_S, VirtualControlPlane

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.gang.state.phase import Phase


class Follower:
    """Run `follow()` for a gang of a virtual control plane, and keep what it reports."""

    def __init__(self, plane: VirtualControlPlane, ref: GangRef, **options: Any) -> None:
        self.reports: list[GangState] = []
        options = {"report": self.reports.append, "now": plane.clock.now} | options
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
