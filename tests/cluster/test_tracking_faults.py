"""A gang that is followed on a real control plane, while each kind of request in turn comes to grief.

Always: each pod's outcome is recorded exactly once and before the pod is let go, no finalizer is left, and the verdict
is the Job's.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster import loop_local
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import InformerFactory
from airflow_provider_gangjobs.cluster.informer.config import InformerConfig
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS
from airflow_provider_gangjobs.gang.labels import LABEL_JOB_UID
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.tracking.follow import follow
from gangjobs_sandbox.api.faults import Fault, FaultKind
from tests.cluster.fault_proxy import FaultProxy, InjectedFault
from tests.endings.fake_kubelets import FakeKubelets
from tests.endings.gang_under_test import GangUnderTest
from tests.endings.scenario_runner import check, told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from airflow_provider_gangjobs.cluster.http.transport import Request
    from tests.cluster.tenant import Tenant

TIMEOUT_S = 3.0
HURRIED = InformerConfig(watch_timeout_s=(3.0, 5.0), idle_margin_s=1.0)
"""A watch that has fallen silent is noticed soon."""

ALL_ON = "1.36"
"""Elsewhere only what has to do with writes and a process's death."""
ELSEWHERE = ("dies before", "dies after", "500 after")

READS = ("LIST jobs", "WATCH jobs", "LIST pods", "WATCH pods", "GET jobs")
OF_A_SUCCESSOR = "LIST configmaps"
"""Asked for by one who finds that another has begun the ledger."""
READS_OF_GROUPS = ("LIST podgroups", "WATCH podgroups")
WRITES = ("POST configmaps", "PATCH configmaps", "PATCH pods")

DISCOVERY = "GET discovery"

TROUBLES: dict[str, tuple[Fault, bool]] = {
    "dies before": (Fault(FaultKind.DROP_BEFORE), True),
    "dies after": (Fault(FaultKind.DROP_AFTER), True),
    "409": (Fault(FaultKind.STATUS, code=409), False),
    "410": (Fault(FaultKind.STATUS, code=410), False),
    "429": (Fault(FaultKind.STATUS, code=429, retry_after_s=1), False),
    "500 before": (Fault(FaultKind.STATUS, code=500), False),
    "500 after": (Fault(FaultKind.STATUS_AFTER, code=500), False),
    "503": (Fault(FaultKind.STATUS, code=503), False),
    "dropped before": (Fault(FaultKind.DROP_BEFORE), False),
    "dropped after": (Fault(FaultKind.DROP_AFTER), False),
    "no answer": (Fault(FaultKind.HALF_OPEN), False),
    "carried out too late": (Fault(FaultKind.DELAY, delay_s=TIMEOUT_S + 1), False),
}
"""The fault of a request, and whether the process ends with that request."""

ENDS = {0: (OutcomeKind.SUCCEEDED,), 1: (OutcomeKind.FAILED,)}


BEFORE = ("dies before", "500 before", "dropped before", "carried out too late")
"""Of a request that changes nothing, the same as its counterpart."""


def kinds(release: str) -> tuple[str, ...]:
    """All requests of a whole tracking run."""
    return (DISCOVERY, *READS, OF_A_SUCCESSOR, *(READS_OF_GROUPS if release != "1.35" else ()), *WRITES)


def concerned(release: str, trouble: str) -> list[str]:
    """What can be answered so, and on releases that are not looked at in full, what writes."""
    if trouble == "410":
        return [kind for kind in kinds(release) if kind.startswith(("LIST", "WATCH"))]
    only_writes = trouble in (*BEFORE, "409") or release != ALL_ON
    return [kind for kind in kinds(release) if kind in WRITES or not only_writes]


class Impatient(Client):
    """Waits for an answer for `TIMEOUT_S`, instead of half a minute and more."""

    def __init__(self, config: ClusterConfig) -> None:
        super().__init__(config)
        send = self._transport.send

        async def send_impatiently(request: Request, *, timeout_s: float) -> bytes:
            return await send(request, timeout_s=min(timeout_s, TIMEOUT_S))

        self._transport.send = send_impatiently  # type: ignore[method-assign]


@dataclass(frozen=True)
class World:
    """A tenant's namespace with hollow nodes, and a gateway for those who follow its gangs, whose informers hurry."""

    tenant: Tenant
    kubelets: FakeKubelets
    proxy: FaultProxy

    @classmethod
    @asynccontextmanager
    async def of(cls, tenant: Tenant) -> AsyncIterator[World]:
        plane = tenant.plane
        config = ClusterConfig.from_extras("admin", {"kube_config_path": str(plane.folder / "admin.kubeconfig")})
        hurried = InformerFactory(connect=Impatient, config=HURRIED, linger_s=0)
        loop_local._STATE.setdefault(asyncio.get_running_loop(), {})[InformerFactory] = hurried
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy.opened(plane))
            kubelets = FakeKubelets(await stack.enter_async_context(Client(config)))
            stack.push_async_callback(hurried.aclose)
            await stack.enter_async_context(kubelets.playing())
            yield cls(tenant, kubelets, proxy)

    @asynccontextmanager
    async def gang_spec(self, workers: int = 2) -> AsyncIterator[GangUnderTest]:
        tenant, kubelets = self.tenant, self.kubelets
        async with GangUnderTest.begun(
            kubelets.admin, tenant.config, tenant.namespace, kubelets, nodes=(workers,), workers=workers
        ) as gang:
            yield gang

    def follow(self, gang: GangUnderTest, trouble: InjectedFault, **options: Any) -> asyncio.Task[GangEvent]:
        """A process that follows the gang, by way of the gateway."""
        config = self.proxy.config_with_fault(self.tenant, trouble)
        return asyncio.create_task(follow(config, gang.ref, report=lambda _: None, **options))


async def one_ends(gang: GangUnderTest, trouble: InjectedFault) -> None:
    """A rank succeeds and is recorded, or who should have done so is dead."""
    await gang.running()
    await gang.end(0)
    await gang.until(lambda: _is_recorded(gang, trouble))


async def ends_in_two_steps(gang: GangUnderTest, trouble: InjectedFault) -> None:
    """One rank succeeds and is recorded, then the other fails: so the ledger is created, and then added to."""
    await one_ends(gang, trouble)
    await gang.end(1, 42)


async def _is_recorded(gang: GangUnderTest, trouble: InjectedFault) -> bool:
    if trouble.is_dead:
        return True
    selector = f"{LABEL_JOB_UID}={gang.ref.uid}"
    return bool(await gang.admin.list(CONFIGMAPS, gang.namespace, label_selector=selector))


async def tracked(world: World, gang: GangUnderTest, trouble: InjectedFault) -> GangEvent:
    """The event of the gang's follower, or of the next one if that dies."""
    if trouble.kind == OF_A_SUCCESSOR:
        return await tracked_by_a_successor(world, gang, trouble)
    following = world.follow(gang, trouble)
    return await told_by_it_or_the_next(gang, trouble, following, ends_in_two_steps(gang, trouble))


async def tracked_by_a_successor(world: World, gang: GangUnderTest, trouble: InjectedFault) -> GangEvent:
    """As `tracked`, but the first follower is without trouble, and ends after it has begun the ledger."""
    first = world.follow(gang, InjectedFault())
    await one_ends(gang, InjectedFault())
    await ended(first)
    return await told_by_it_or_the_next(gang, trouble, world.follow(gang, trouble), gang.end(1, 42))


async def told_by_it_or_the_next(
    gang: GangUnderTest, trouble: InjectedFault, following: asyncio.Task[GangEvent], acts: Awaitable[None]
) -> GangEvent:
    """The event of this follower or, if that dies, of the next one."""
    striking = asyncio.create_task(trouble.was_injected.wait())
    try:
        await acts
        await asyncio.wait([following, striking], return_when=asyncio.FIRST_COMPLETED)
        if not trouble.is_dead:
            return await following
    finally:
        await ended(following, striking)
    return await gang.follow()


async def ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def survives(world: World, kind: str, trouble: str) -> None:
    fault, is_fatal = TROUBLES[trouble]
    armed = InjectedFault(kind, fault, is_fatal=is_fatal)
    async with world.gang_spec() as gang:
        event = await tracked(world, gang, armed)
        assert armed.was_injected.is_set(), f"no {kind} was made: {armed.made}"
        assert (event.status, event.reason, event.notes) == (Status.FAILED, "AppFailed", ()), event
        assert told(event) == ENDS, event
        await check(gang, event)


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_each_request_may_go_wrong_and_nothing_is_lost_or_doubled(tenant: Tenant, trouble: str) -> None:
    release = tenant.plane.release
    if release != ALL_ON and trouble not in ELSEWHERE:
        pytest.skip(f"tried on {ALL_ON}")
    async with World.of(tenant) as world:
        tries = {kind: survives(world, kind, trouble) for kind in concerned(release, trouble)}
        errors = dict(zip(tries, await asyncio.gather(*tries.values(), return_exceptions=True), strict=True))
    failed = {kind: error for kind, error in errors.items() if error is not None}
    assert not failed, failed
    assert tenant.forbidden_requests() == []


async def test_requests_of_a_whole_run_are_those_that_go_wrong_here(tenant: Tenant) -> None:
    async with World.of(tenant) as world, world.gang_spec() as gang:
        nothing = InjectedFault()
        await check(gang, await tracked(world, gang, nothing))
        assert {*nothing.made, OF_A_SUCCESSOR} == set(kinds(tenant.plane.release))


async def test_two_harvesters_at_once_record_each_pod_once(tenant: Tenant) -> None:
    async with World.of(tenant) as world, world.gang_spec(workers=12) as gang:
        followers = [world.follow(gang, InjectedFault()) for _ in range(2)]
        await gang.running(12)
        await gang.end_all()
        for event in await asyncio.gather(*followers):
            assert event.status is Status.SUCCEEDED
            await check(gang, event)


async def test_two_harvesters_of_which_one_dies(tenant: Tenant) -> None:
    fault, _ = TROUBLES["dies after"]
    async with World.of(tenant) as world, world.gang_spec() as gang:
        mortal = world.follow(gang, InjectedFault("POST configmaps", fault, is_fatal=True))
        living = world.follow(gang, InjectedFault())
        await ends_in_two_steps(gang, InjectedFault())
        event = await living
        await ended(mortal)
        assert told(event) == ENDS
        await check(gang, event)


@pytest.mark.parametrize("trouble", ["dies before", "dies after", "409", "500 after", "no answer"])
async def test_halt_may_go_wrong(tenant: Tenant, trouble: str) -> None:
    """A gang whose time is over is halted, by whoever follows it then."""
    if tenant.plane.release != ALL_ON:
        pytest.skip(f"tried on {ALL_ON}")
    fault, is_fatal = TROUBLES[trouble]
    armed = InjectedFault("PATCH jobs", fault, is_fatal=is_fatal)
    deadlines = Deadlines(run_s=1)
    async with World.of(tenant) as world, world.gang_spec() as gang:
        following = world.follow(gang, armed, deadlines=deadlines)
        await armed.was_injected.wait()
        if is_fatal:
            await ended(following)
            following = asyncio.create_task(gang.follow(deadlines=deadlines))
        event = await following
        assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.running.ranks")
        assert told(event) == {0: (OutcomeKind.DELETED,), 1: (OutcomeKind.DELETED,)}
        await check(gang, event)
        assert (await gang.job())["spec"]["suspend"] is True
