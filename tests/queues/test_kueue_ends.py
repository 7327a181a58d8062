"""How gangs in queues of the real Kueue end: killed and timed out in each phase, side by side, with nothing held."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.ends import Killed, kill
from tests.queues.following import following
from tests.queues.tenants import kueue_tenant
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.spec import GangSpec
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

SLEEP = "import time; time.sleep(3000)"


class Phase(NamedTuple):
    """How a gang gets into a phase and stays in it."""

    quota: str
    spec: GangSpec
    line: str
    deadlines: Deadlines
    reason: str
    """Reason of the timeout of this phase."""


def gang(cpu: str) -> GangSpec:
    return gang_spec(3, code=SLEEP, cpu=cpu, queue_name="team")


PHASES = {
    "queued": Phase("1", gang("1"), "maximum capacity (1)", Deadlines(queue_s=10), "Deadline.queued"),
    "assembling": Phase("20", gang("4500m"), "Insufficient cpu", Deadlines(assemble_s=3), "Deadline.assembling"),
    "running": Phase("20", gang("100m"), "running: 3/3", Deadlines(run_s=2), "Deadline.running"),
}
ENDS = [(end, phase) for end in ("killed", "timed out") for phase in PHASES]


@pytest.fixture(scope="module")
def played(kueue: Kueue) -> Mapping[tuple[str, str], Any]:
    """What went wrong, by end and phase. All gangs wait at the same time, each in a namespace and queue of its own."""
    return asyncio.run(play_all(kueue))


async def play_all(kueue: Kueue) -> dict[tuple[str, str], Any]:
    with ExitStack() as stack:
        tenants = [stack.enter_context(kueue_tenant(kueue.plane, f"{end} {phase}")) for end, phase in ENDS]
        try:
            plays = [play(kueue, tenant, end, phase) for tenant, (end, phase) in zip(tenants, ENDS, strict=True)]
            found = await asyncio.gather(*plays, return_exceptions=True)
        finally:
            await informers().aclose()
    return dict(zip(ENDS, found, strict=True))


async def play(kueue: Kueue, tenant: Tenant, end: str, name: str) -> None:
    phase = PHASES[name]
    queue = await asyncio.to_thread(kueue.create_queue, tenant.namespace, cpu=phase.quota)
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, phase.spec)
        deadlines = phase.deadlines if end == "timed out" else Deadlines()
        async with following(tenant, submission, deadlines) as followed:
            await followed.line(phase.line)
            if end == "killed":
                assert await kill(gangs.client, submission.ref, "somebody") is Killed.DELETED
            event = await followed.event()
        expected = {"killed": ("deleted", "JobDeleted"), "timed out": ("timeout", phase.reason)}[end]
        assert (event.status, event.reason) == expected, event
        await nothing_is_held(kueue, queue, gangs, tenant)
        left = [] if end == "killed" else [True]
        async with asyncio.timeout(TIMEOUT_S):
            while [has_failed(job) for job in await gangs.client.list(JOBS, tenant.namespace)] != left:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert tenant.forbidden_requests() == []


async def nothing_is_held(kueue: Kueue, queue: str, gangs: GangService, tenant: Tenant) -> None:
    """Wait until no pod is left and Kueue has its whole quota back."""
    async with asyncio.timeout(TIMEOUT_S):
        while await gangs.client.list(PODS, tenant.namespace):  # noqa: ASYNC110 - another process deletes them
            await asyncio.sleep(0.1)
        while await asyncio.to_thread(kueue.used_cpu, queue) != "0":  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.1)


def has_failed(job: Mapping[str, Any]) -> bool:
    return any((one["type"], one["status"]) == ("Failed", "True") for one in job["status"].get("conditions", ()))


@pytest.mark.parametrize(("end", "phase"), ENDS, ids=[" while ".join(end) for end in ENDS])
def test_gang_ends_in_each_phase_and_holds_nothing(
    end: str, phase: str, played: Mapping[tuple[str, str], BaseException | None]
) -> None:
    if (wrong := played[end, phase]) is not None:
        raise wrong
