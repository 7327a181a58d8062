"""A gang that waits for nodes on real control planes: too large for every node, and too large for now."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import SubmissionRequest, TaskRule
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from tests.cluster.gangs import gang_spec
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from tests.cluster.tenant import Tenant

ROLE = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "airflow_provider_gangjobs" / "rbac" / "rbac-capacity.yaml").read_text()
)
SLEEP = "import time; time.sleep(600)"


async def submit(gangs: GangService, dag: str, workers: int, cpu: str) -> GangRef:
    key = TaskKey(dag, "run", "train")
    request = SubmissionRequest(key=key, claim=Claim("somebody", labels=key.labels(1)), rule=TaskRule())
    return (await gangs.submit(gang_spec(workers, code=SLEEP, cpu=cpu), request)).ref


@asynccontextmanager
async def followed(tenant: Tenant, ref: GangRef, **deadlines: float) -> AsyncIterator[_Followed]:
    one = _Followed()
    options = FollowOptions(deadlines=Deadlines(**deadlines), report=one.add)
    one.task = asyncio.create_task(follow(tenant.config, ref, options))
    try:
        yield one
    finally:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


class _Followed:
    """The lines that a follower has reported."""

    task: asyncio.Task[Any]

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def add(self, state: GangState) -> None:
        self.lines.append(state.line)
        self._changed.set()

    async def until(self, text: str) -> str:
        """Return the first line that has this text."""
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := [line for line in self.lines if text in line]):
                self._changed.clear()
                await self._changed.wait()
        return found[0]


async def test_gang_that_is_too_large_for_every_node_can_never_fit(tenant: Tenant) -> None:
    tenant.grant_everywhere(ROLE)
    async with GangService.connect(tenant.config) as gangs:
        ref = await submit(gangs, "big", 2, "64")
        async with followed(tenant, ref, assemble_s=15) as one:
            line = await one.until("Can never fit")
            event = await one.task
    never = "Can never fit on the present nodes: each rank requests 64 CPU, and the largest of 2 nodes has 4"
    assert line == f"assembling: 2 pods, none placed. {never}"
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling")
    assert never in event.message
    assert tenant.forbidden_requests() == []


async def test_gang_that_is_too_large_for_now_says_behind_whom_it_waits(tenant: Tenant) -> None:
    tenant.grant_everywhere(ROLE)
    async with GangService.connect(tenant.config) as gangs:
        first = await submit(gangs, "train", 2, "2500m")
        async with followed(tenant, first) as running:
            await running.until("running")
        second = await submit(gangs, "late", 4, "1500m")
        async with followed(tenant, second) as waiting:
            line = await waiting.until("Needs")
    assert line.startswith(
        "assembling: 4 pods, none placed. Insufficient cpu on 2 of 2 nodes. Needs 4 x 1500m CPU; 3 of 8 CPU"
    )
    assert "room for 2 of 4 ranks now. 5 CPU are held by DAG train" in line
    assert tenant.forbidden_requests() == []


async def test_without_the_clusterrole_the_scheduler_is_quoted_and_nothing_is_refused(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        ref = await submit(gangs, "late", 4, "3")
        async with followed(tenant, ref, assemble_s=12) as one:
            event = await one.task
    assert event.reason == "Deadline.assembling"
    assert "found nodes for 2 of 4 pods" in event.message
    assert tenant.forbidden_requests() == []
