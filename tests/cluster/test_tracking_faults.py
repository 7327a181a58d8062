"""A gang is followed on a real control plane, while a fault is injected into each kind of request in turn.

In each case each pod's outcome is recorded exactly once and before the pod is released, no finalizer is left, and the
verdict is the end of the Job.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import InformerFactory
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig
from airflow_provider_gangjobs.cluster.loop_local import set_loop_local
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS
from airflow_provider_gangjobs.kube.well_known import LABEL_JOB_UID
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from gangjobs_sandbox.api.faults import Fault, FaultKind
from tests.cluster.fault_proxy import FaultProxy, InjectedFault
from tests.endings.fake_kubelets import FakeKubelets
from tests.endings.gang_under_test import WITHIN_S, GangUnderTest
from tests.endings.scenario_runner import check, outcomes_by_rank

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from airflow_provider_gangjobs.cluster.http.connections import Request
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from tests.cluster.tenant import Tenant


def awaited_by(task: asyncio.Task[Any]) -> list[str]:
    """Return function and line of each coroutine of a suspended task, the outermost first.

    `Task.get_stack` returns the outermost one only.
    """
    lines: list[str] = []
    waits: Any = task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "ag_frame", None)
        if frame is not None:
            lines.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        waits = getattr(waits, "cr_await", None) or getattr(waits, "ag_await", None)
    return lines


TIMEOUT_S = 3.0
SHORT_WATCHES = InformerConfig(watch_timeout_s=(3.0, 5.0), idle_margin_s=1.0, linger_s=0)
"""The settings find a watch that delivers nothing within seconds."""

FULLY_TESTED_RELEASE = "1.36"
"""Every fault is injected on this release. On the other releases, only faults of writes and crashes are."""
FAULTS_ON_OTHER_RELEASES = ("dies before", "dies after", "500 after")

READS = ("LIST jobs", "WATCH jobs", "LIST pods", "WATCH pods", "GET jobs")
SUCCESSOR_READ = "LIST configmaps"
"""A follower sends this request if another follower has begun the ledger."""
READS_OF_GROUPS = ("LIST podgroups", "WATCH podgroups")
WRITES = ("POST configmaps", "PATCH configmaps", "PATCH pods")

DISCOVERY = "GET discovery"

FAULTS: dict[str, tuple[Fault, bool]] = {
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
"""For a request that changes nothing, each of these faults is the same as its counterpart."""


KINDS = (DISCOVERY, *READS, SUCCESSOR_READ, *READS_OF_GROUPS, *WRITES)
"""The kinds of all requests that follow a gang from its start to its end."""


def requests_with_fault(release: str, fault_name: str) -> list[str]:
    """Return the requests into which the fault is injected."""
    if fault_name == "410":
        return [kind for kind in KINDS if kind.startswith(("LIST", "WATCH"))]
    only_writes = fault_name in (*BEFORE, "409") or release != FULLY_TESTED_RELEASE
    return [kind for kind in KINDS if kind in WRITES or not only_writes]


class ShortTimeoutClient(Client):
    """A client that waits for a response for `TIMEOUT_S`, instead of half a minute and more."""

    def __init__(self, config: ClusterConfig) -> None:
        super().__init__(config)
        send = self._transport.send

        async def send_with_short_timeout(request: Request, *, timeout_s: float = TIMEOUT_S, **others: Any) -> bytes:
            return await send(request, timeout_s=min(timeout_s, TIMEOUT_S), **others)

        self._transport.send = send_with_short_timeout  # type: ignore[method-assign]


@dataclass(frozen=True)
class FaultyNamespace:
    """A namespace with fake kubelets, and a proxy that injects faults into the requests of followers."""

    tenant: Tenant
    kubelets: FakeKubelets
    proxy: FaultProxy

    @classmethod
    @asynccontextmanager
    async def of(cls, tenant: Tenant) -> AsyncIterator[FaultyNamespace]:
        plane = tenant.plane
        config = ClusterConfig.from_extras("admin", {"kube_config_path": str(plane.folder / "admin.kubeconfig")})
        factory = InformerFactory(connect=ShortTimeoutClient, config=SHORT_WATCHES)
        set_loop_local(InformerFactory, factory)
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy.opened(plane))
            kubelets = FakeKubelets(await stack.enter_async_context(Client(config)))
            stack.push_async_callback(factory.aclose)
            await stack.enter_async_context(kubelets.playing())
            yield cls(tenant, kubelets, proxy)

    @asynccontextmanager
    async def gang_spec(self, workers: int = 2) -> AsyncIterator[GangUnderTest]:
        tenant, kubelets = self.tenant, self.kubelets
        async with GangUnderTest.begun(
            kubelets.admin, tenant.config, tenant.namespace, kubelets, nodes=(workers,), workers=workers
        ) as gang:
            yield gang

    def follow(self, gang: GangUnderTest, fault: InjectedFault, **options: Any) -> asyncio.Task[GangEvent]:
        """Follow the gang through the proxy, as a process of its own would."""
        config = self.proxy.config_with_fault(self.tenant, fault)
        return asyncio.create_task(follow(config, gang.ref, FollowOptions(**options)))


async def one_ends(gang: GangUnderTest, fault: InjectedFault) -> None:
    """End a rank, and wait until its outcome is recorded or the follower is dead."""
    await gang.running()
    if fault.kind in READS_OF_GROUPS:  # on a busy machine the gang may end before these requests
        async with asyncio.timeout(WITHIN_S):
            await fault.was_injected.wait()
    await gang.end(0)
    await gang.until(lambda: _is_recorded(gang, fault))


async def ends_in_two_steps(gang: GangUnderTest, fault: InjectedFault) -> None:
    """End one rank, and fail the other one after the first is recorded. The ledger is created, and then patched."""
    await one_ends(gang, fault)
    await gang.end(1, 42)


async def _is_recorded(gang: GangUnderTest, fault: InjectedFault) -> bool:
    if fault.is_dead:
        return True
    selector = f"{LABEL_JOB_UID}={gang.ref.uid}"
    return bool(await gang.admin.list(CONFIGMAPS, gang.namespace, label_selector=selector))


async def tracked(namespace: FaultyNamespace, gang: GangUnderTest, fault: InjectedFault) -> GangEvent:
    """Return the event of the follower or, if the follower dies, of the next follower."""
    if fault.kind == SUCCESSOR_READ:
        return await tracked_by_a_successor(namespace, gang, fault)
    following = namespace.follow(gang, fault)
    return await event_of_this_or_the_next_follower(gang, fault, following, ends_in_two_steps(gang, fault))


async def tracked_by_a_successor(namespace: FaultyNamespace, gang: GangUnderTest, fault: InjectedFault) -> GangEvent:
    """Return the event of a follower that continues the ledger of an earlier follower, which had no faults."""
    first = namespace.follow(gang, InjectedFault())
    await one_ends(gang, InjectedFault())
    await ended(first)
    return await event_of_this_or_the_next_follower(gang, fault, namespace.follow(gang, fault), gang.end(1, 42))


async def event_of_this_or_the_next_follower(
    gang: GangUnderTest, fault: InjectedFault, following: asyncio.Task[GangEvent], acts: Awaitable[None]
) -> GangEvent:
    """Return the event of this follower or, if the follower dies, of the next follower."""
    injected = asyncio.create_task(fault.was_injected.wait())
    try:
        await acts
        await asyncio.wait([following, injected], return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN_S)
        if not fault.is_dead:
            return await event_in_time(gang, fault, following)
    finally:
        await ended(following, injected)
    successor = asyncio.create_task(gang.follow())
    try:
        return await event_in_time(gang, fault, successor)
    finally:
        await ended(successor)


async def event_in_time(gang: GangUnderTest, fault: InjectedFault, following: asyncio.Task[GangEvent]) -> GangEvent:
    """Return the event of a follower. If there is none in time, the message says what the follower waits for."""
    await asyncio.wait([following], timeout=WITHIN_S)
    if following.done():
        return following.result()
    pods = [(pod["metadata"], pod["status"]) for pod in await gang.pods()]
    waits = [
        task.get_name() + ": " + " > ".join(awaited_by(task))
        for task in asyncio.all_tasks()
        if task is following or gang.ref.name in task.get_name()
    ]
    raise AssertionError(f"no event: {waits}; requests {fault.requests}; Job {await gang.job()}; pods {pods}")


async def ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def check_fault(namespace: FaultyNamespace, kind: str, fault_name: str) -> None:
    fault, is_fatal = FAULTS[fault_name]
    armed = InjectedFault(kind, fault, is_fatal=is_fatal)
    async with namespace.gang_spec() as gang:
        event = await tracked(namespace, gang, armed)
        assert armed.was_injected.is_set(), f"no {kind} was sent: {armed.requests}"
        assert (event.status, event.reason, event.notes) == (Status.FAILED, "AppFailed", ()), event
        assert outcomes_by_rank(event) == ENDS, event
        await check(gang, event)


@pytest.mark.parametrize("fault_name", FAULTS)
async def test_each_request_may_fail_and_no_outcome_is_lost_or_recorded_twice(tenant: Tenant, fault_name: str) -> None:
    release = tenant.plane.release
    if release != FULLY_TESTED_RELEASE and fault_name not in FAULTS_ON_OTHER_RELEASES:
        pytest.skip(f"tried on {FULLY_TESTED_RELEASE}")
    async with FaultyNamespace.of(tenant) as namespace:
        tries = {kind: check_fault(namespace, kind, fault_name) for kind in requests_with_fault(release, fault_name)}
        errors = dict(zip(tries, await asyncio.gather(*tries.values(), return_exceptions=True), strict=True))
    failed = {kind: error for kind, error in errors.items() if error is not None}
    assert not failed, failed
    assert tenant.forbidden_requests() == []


async def test_requests_of_a_whole_run_are_the_requests_with_injected_faults(tenant: Tenant) -> None:
    async with FaultyNamespace.of(tenant) as namespace, namespace.gang_spec() as gang:
        nothing = InjectedFault()
        await check(gang, await tracked(namespace, gang, nothing))
        assert {*nothing.requests, SUCCESSOR_READ} == set(KINDS)


async def test_two_harvesters_at_once_record_each_pod_once(tenant: Tenant) -> None:
    async with FaultyNamespace.of(tenant) as namespace, namespace.gang_spec(workers=12) as gang:
        followers = [namespace.follow(gang, InjectedFault()) for _ in range(2)]
        await gang.running(12)
        await gang.end_all()
        for event in await asyncio.gather(*followers):
            assert event.status is Status.SUCCEEDED
            await check(gang, event)


async def test_second_harvester_completes_the_harvest_when_the_first_one_dies(tenant: Tenant) -> None:
    fault, _ = FAULTS["dies after"]
    fatal = InjectedFault("POST configmaps", fault, is_fatal=True)
    slow = InjectedFault("POST configmaps", Fault(FaultKind.DELAY, delay_s=TIMEOUT_S / 2))
    async with FaultyNamespace.of(tenant) as namespace, namespace.gang_spec() as gang:
        crashing, surviving = namespace.follow(gang, fatal), namespace.follow(gang, slow)
        await ends_in_two_steps(gang, InjectedFault())
        event = await surviving
        await ended(crashing)
        assert fatal.is_dead
        assert outcomes_by_rank(event) == ENDS
        await check(gang, event)


@pytest.mark.parametrize("fault_name", ["dies before", "dies after", "409", "500 after", "no answer"])
async def test_stop_is_completed_after_each_fault(tenant: Tenant, fault_name: str) -> None:
    """A gang whose deadline has passed is stopped by its follower, or by the next one."""
    if tenant.plane.release != FULLY_TESTED_RELEASE:
        pytest.skip(f"tried on {FULLY_TESTED_RELEASE}")
    fault, is_fatal = FAULTS[fault_name]
    armed = InjectedFault("PATCH jobs", fault, is_fatal=is_fatal)
    deadlines = Deadlines(run_s=1)
    async with FaultyNamespace.of(tenant) as namespace, namespace.gang_spec() as gang:
        following = namespace.follow(gang, armed, deadlines=deadlines)
        await armed.was_injected.wait()
        if is_fatal:
            await ended(following)
            following = asyncio.create_task(gang.follow(deadlines=deadlines))
        event = await following
        assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.running")
        assert outcomes_by_rank(event) == {0: (OutcomeKind.DELETED,), 1: (OutcomeKind.DELETED,)}
        await check(gang, event)
        assert (await gang.job())["spec"]["activeDeadlineSeconds"] == 0
