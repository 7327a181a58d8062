"""Releases leave connections for the requests of events, however many gangs are released at once."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_gangjobs.ending.release import LOOP_IN_FLIGHT_MAX, release_all
from airflow_provider_gangjobs.kube.views import Meta, PodView
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST


class BlockingServer:
    """An API server that answers when the test sets `answer`."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.most = 0
        self.full = asyncio.Event()
        self.answer = asyncio.Event()

    async def patch(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        if self.in_flight >= LOOP_IN_FLIGHT_MAX:
            self.full.set()
        await self.answer.wait()
        self.in_flight -= 1
        return {}


def pod(name: str) -> PodView:
    return PodView(metadata=Meta(name=name, namespace="team", uid=name, finalizers=(FINALIZER_HARVEST,)))


async def test_number_of_releases_in_flight_is_limited_for_all_gangs_together() -> None:
    server = BlockingServer()
    released: list[str] = []

    def on_released(one: PodView, error: Exception | None) -> None:
        assert error is None
        released.append(one.metadata.name)

    gangs = [[pod(f"{gang}-{rank}") for rank in range(2)] for gang in range(LOOP_IN_FLIGHT_MAX)]
    async with asyncio.TaskGroup() as group:
        for pods in gangs:
            group.create_task(release_all(server, pods, on_released))  # type: ignore[arg-type]
        await server.full.wait()
        server.answer.set()
    assert server.most == LOOP_IN_FLIGHT_MAX
    assert len(released) == len(set(released)) == 2 * LOOP_IN_FLIGHT_MAX
