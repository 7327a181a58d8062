"""A gang that a test follows while it changes the cluster, alone or behind another gang that holds the quota."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from tests.cluster.gangs import submit_gang
from tests.replies import accepted
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

POLL_S = 0.1


@dataclass
class Following:
    """The lines that the task would log, and the event at the end."""

    lines: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    """The categories of these lines."""
    task: asyncio.Task[GangEvent] | None = None

    def report(self, state: GangState) -> None:
        """Keep what a task would log."""
        self.lines.append(state.line)
        self.categories.append(state.reason.category)

    async def line(self, part: str) -> str:
        """Wait for the first line that contains this text, and return the line."""
        await until(lambda: any(part in line for line in self.lines), lambda: f"no line has {part!r}: {self.lines}")
        return next(line for line in self.lines if part in line)

    async def event(self) -> GangEvent:
        """Wait for the event at the end, and return the event."""
        assert self.task is not None
        return await asyncio.wait_for(asyncio.shield(self.task), TIMEOUT_S)


@asynccontextmanager
async def following(
    tenant: Tenant, submission: Submission, deadlines: Deadlines | None = None
) -> AsyncIterator[Following]:
    """Follow the gang in the background while the block runs."""
    found = Following()
    found.task = asyncio.create_task(
        follow(
            tenant.config,
            submission.ref,
            FollowOptions(deadlines=deadlines or Deadlines(), report=found.report),
        )
    )
    try:
        yield found
    finally:
        found.task.cancel()
        await asyncio.gather(found.task, return_exceptions=True)


async def until(is_true: Callable[[], bool], why: Callable[[], str] = lambda: "not in time") -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not is_true():  # noqa: ASYNC110 - the condition may read the cluster
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(why()) from None


def pods_of(tenant: Tenant, submission: Submission | None = None) -> list[dict[str, Any]]:
    """The pods of the namespace, or of one gang."""
    query = {"labelSelector": f"{LABEL_GANG}={submission.ref.name}"} if submission is not None else {}
    with tenant.plane.client() as admin:
        reply = admin.get(f"/api/v1/namespaces/{tenant.namespace}/pods", params=query)
    found: list[dict[str, Any]] = accepted(reply)["items"]
    return found


@dataclass(frozen=True)
class Waiting:
    """A gang that waits for the quota of another gang."""

    before: Submission
    """The gang that runs and holds the quota."""
    submission: Submission
    gang: Following


@asynccontextmanager
async def waiting_behind(
    tenant: Tenant, gangs: GangService, before: GangSpec, spec: GangSpec
) -> AsyncIterator[Waiting]:
    """Run the one gang until the quota is used up, and follow the other one while it waits and the block runs."""
    first = await submit_gang(gangs, before, "first")
    await until(lambda: len(pods_of(tenant)) == before.workers)
    second = await submit_gang(gangs, spec, "second")
    async with following(tenant, second) as gang:
        await gang.line("does not admit the gang yet: insufficient unused quota for cpu")
        yield Waiting(first, second, gang)
