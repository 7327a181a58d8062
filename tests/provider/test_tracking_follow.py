"""A follower against a whole control plane: phases in order, one event, nothing held."""

from __future__ import annotations

import asyncio

from airflow_provider_gangjobs.gang.event import Status
from airflow_provider_gangjobs.gang.lifecycle import Observation, Phase
from airflow_provider_gangjobs.tracking.follow import follow
from tests.provider.plane import Plane, timing
from tests.provider.virtual_time import in_virtual_time


class Following:
    """A follower at work, with what it has reported."""

    def __init__(self, plane: Plane, ref, **options) -> None:
        self.reports: list[Observation] = []
        options = {"now": plane.clock.now, "timing": timing()} | options
        self.task = asyncio.create_task(follow(plane.config, ref, report=self.reports.append, **options))

    @property
    def phases(self) -> list[Phase]:
        seen = [report.phase for report in self.reports]
        return [phase for n, phase in enumerate(seen) if n == 0 or seen[n - 1] is not phase]

    async def event(self, within_s: float = 3600):
        async with asyncio.timeout(within_s):
            return await self.task


@in_virtual_time
async def test_gang_that_succeeds_is_told_once():
    async with Plane.running() as plane:
        ref = plane.submit(workers=3)
        following = Following(plane, ref)
        await plane.until(lambda: plane.running_ranks() == 3)
        await asyncio.sleep(5)
        plane.finish_all(message='{"acc": 0.9}')
        event = await following.event()
        assert event.status is Status.SUCCEEDED
        assert event.completed_indexes == "0-2"
        assert [rank.rank for rank in event.ranks] == [0, 1, 2]
        assert following.phases[-1] is Phase.SUCCEEDED
        assert Phase.RUNNING in following.phases
        assert plane.held() == []
        assert len(plane.ledger()) == 3
