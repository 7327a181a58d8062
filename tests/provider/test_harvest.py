"""The harvester records ended pods and releases them, also if it dies, or other harvesters do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.errors import Forbidden, ServerError
from airflow_provider_gangjobs.ending.release import LOOP_IN_FLIGHT_MAX, release
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.jobs.requests import list_pods
from airflow_provider_gangjobs.kube.views import Meta, PodView, view
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes
from airflow_provider_gangjobs.tracking.harvest.harvester import (
    BATCH_PODS_MAX,
    DRAIN_FAILURES_MAX,
    PAUSE_BASE_S,
    Harvester,
    harvest_totals,
)
from airflow_provider_gangjobs.tracking.harvest.ledger import Ledger
from gangjobs_sandbox.resources import CONFIGMAPS, PODS
from tests.crashes import Crash, CrashingClient, crash_points, dies, may_die
from tests.examples import examples
from tests.guarantees.harvest import check_harvest, recorded_before_released
from tests.guarantees.history import is_held
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang

pytestmark = in_virtual_time


# -- The harvester records ended pods and releases them, on an API server whose pods the test creates ----------------


class FailingLedger(Ledger):
    """A ledger whose first write raises an unexpected error."""

    async def record(self, *_: Any) -> None:
        raise ZeroDivisionError


async def test_only_ended_pods_are_harvested(gang):
    for rank, phase in enumerate(["Succeeded", "Failed", "Running", "Pending"]):
        gang.pod(rank, phase=phase)
    harvester = await gang.full_harvester()
    assert await harvester.drain() is None
    assert (harvest_totals().recorded, harvest_totals().released) == (2, 2)
    assert [is_held(pod) for pod in gang.plane.pods()] == [False, False, True, True]
    found = await read_outcomes(gang.plane.client, gang.ref)
    assert [(one.rank, one.outcome) for one in found] == [(0, OutcomeKind.SUCCEEDED), (1, OutcomeKind.FAILED)]


async def test_held_pods_are_released_once_no_more_end(gang):
    gang.pod(0)
    harvester = gang.harvester()
    harvesting = asyncio.create_task(harvester.run())
    await gang.enqueue_all(harvester)
    async with asyncio.timeout(5):
        while harvester.backlog:  # noqa: ASYNC110 - no event reports the backlog
            await asyncio.sleep(0.1)
    harvesting.cancel()
    assert not any(map(is_held, gang.plane.pods()))


async def test_pod_deleted_before_it_was_bound_is_harvested(gang):
    gang.pod(0, phase="Pending", node=None)
    gang.plane.registry.delete(PODS, "train-0", NAMESPACE)
    harvester = await gang.full_harvester()
    await harvester.drain()
    assert gang.plane.pods() == []
    assert [one.outcome for one in await read_outcomes(gang.plane.client, gang.ref)] == [OutcomeKind.DELETED]


async def test_bound_pod_that_is_deleted_is_waited_for(gang):
    gang.pod(0, phase="Running")
    gang.plane.registry.delete(PODS, "train-0", NAMESPACE)
    harvester = await gang.full_harvester()
    assert harvester.backlog == 0


async def test_pod_that_another_process_released_is_recorded(gang):
    gang.pod(0, held=False)
    harvester = await gang.full_harvester()
    await harvester.drain()
    assert len(gang.plane.ledger()) == 1
    await gang.enqueue_all(harvester)
    assert harvester.backlog == 0


async def test_vanished_pod_is_recorded_by_its_last_view(gang):
    last = view(PodView, gang.pod(0, phase="Running", held=False))
    gang.plane.registry.delete(PODS, "train-0", NAMESPACE, grace_period_s=0)
    harvester = gang.harvester()
    harvester.enqueue_deleted([last])
    assert await harvester.drain() is None
    assert [one.outcome for one in await read_outcomes(gang.plane.client, gang.ref)] == [OutcomeKind.DELETED]
    assert harvester.backlog == 0


async def test_pod_that_was_replaced_counts_as_released(gang):
    first = view(PodView, gang.pod(0, held=False))
    gang.plane.registry.delete(PODS, "train-0", NAMESPACE, grace_period_s=0)
    gang.pod(0, phase="Running")
    harvester = gang.harvester()
    harvester.enqueue([_with_finalizer(first)])
    assert (await harvester.drain(), harvester.backlog) == (None, 0)
    assert is_held(gang.plane.pods()[0])


def _with_finalizer(pod: PodView) -> PodView:
    meta = msgspec.structs.replace(pod.metadata, finalizers=(FINALIZER_HARVEST,))
    return msgspec.structs.replace(pod, metadata=meta)


async def test_nothing_is_released_if_it_cannot_be_recorded(gang):
    gang.pod(0)
    gang.plane.arm("status", method="POST", path="/configmaps", code=403, times=DRAIN_FAILURES_MAX)
    harvester = await gang.full_harvester()
    assert isinstance(await harvester.drain(), Forbidden)
    assert (harvester.backlog, len(gang.plane.held())) == (1, 1)
    assert await harvester.drain() is None
    assert gang.plane.held() == []


async def test_one_pod_that_fails_does_not_stop_the_others(gang):
    for rank in range(4):
        gang.pod(rank)
    gang.plane.arm("status", method="PATCH", path="/pods/train-1", code=500, times=DRAIN_FAILURES_MAX)
    harvester = await gang.full_harvester()
    assert isinstance(await harvester.drain(), ServerError)
    assert (harvest_totals().recorded, harvest_totals().released) == (4, 3)
    assert [pod["metadata"]["name"] for pod in gang.plane.held()] == ["train-1"]


@pytest.mark.parametrize("is_draining", [True, False])
async def test_deleted_pod_that_cannot_be_released_does_not_stop_the_others(gang, is_draining):
    gang.pod(0)
    gang.plane.registry.delete(PODS, "train-0", NAMESPACE)
    gang.plane.arm("status", method="PATCH", path="/pods/train-0", code=403, times=None)
    harvester = await gang.full_harvester()
    running = asyncio.create_task(harvester.run())
    await asyncio.sleep(5)
    gang.pod(1, phase="Failed")
    await gang.enqueue_all(harvester)
    if is_draining:
        assert isinstance(await harvester.drain(), Forbidden)
    await gang.plane.until(lambda: [pod["metadata"]["name"] for pod in gang.plane.held()] == ["train-0"])
    assert [one.rank for one in await read_outcomes(gang.plane.client, gang.ref)] == [0, 1]
    gang.plane.faults.remove()
    await gang.plane.until(lambda: not gang.plane.held())
    running.cancel()


async def test_batch_of_deleted_pods_that_cannot_be_released_does_not_stop_the_pods_after_it(gang, monkeypatch):
    monkeypatch.setattr("airflow_provider_gangjobs.tracking.harvest.harvester.BATCH_PODS_MAX", 2)
    for rank in range(3):
        gang.pod(rank)
        gang.plane.registry.delete(PODS, f"train-{rank}", NAMESPACE)
    for rank in range(2):
        gang.plane.arm("status", method="PATCH", path=f"/pods/train-{rank}", code=403, times=None)
    harvester = await gang.full_harvester()
    running = asyncio.create_task(harvester.run())
    await gang.plane.until(lambda: [pod["metadata"]["name"] for pod in gang.plane.held()] == ["train-0", "train-1"])
    running.cancel()


async def test_batches_have_a_limit_and_begin_with_terminating_pods(gang):
    for rank in range(BATCH_PODS_MAX + 3):
        gang.pod(rank)
    terminating = f"train-{BATCH_PODS_MAX + 1}"
    gang.plane.registry.delete(PODS, terminating, NAMESPACE)
    harvester = await gang.full_harvester(gang.harvester(gang.ledger(shard_bytes_max=2**20)))
    assert await harvester.drain() is None
    parts = [change.obj["data"] for change in gang.plane.history.of(CONFIGMAPS)]
    assert [len(part) for part in parts] == [BATCH_PODS_MAX, BATCH_PODS_MAX + 3]
    pods = gang.plane.history.of(PODS)
    freed = [change.obj for change in pods if change.is_deletion or not is_held(change.obj)]
    assert freed[0]["metadata"]["name"] == terminating
    assert gang.plane.held() == []
    assert len(gang.plane.ledger()) == BATCH_PODS_MAX + 3


async def test_failed_harvest_is_retried_with_pauses(gang):
    gang.pod(0)
    gang.plane.arm("status", method="PATCH", path="/pods/", code=429, retry_after_s=40, times=3)
    harvester = await gang.full_harvester()
    running = asyncio.create_task(harvester.run())
    await gang.plane.until(lambda: not gang.plane.held())
    assert elapsed() >= 100
    assert len(gang.plane.faults.history) == 3
    running.cancel()


async def test_drain_does_not_wait_for_a_pause_of_the_harvester(gang):
    gang.pod(0)
    gang.plane.arm("status", method="PATCH", path="/pods/", code=403, times=8)
    harvester = await gang.full_harvester()
    running = asyncio.create_task(harvester.run())
    await gang.plane.until(lambda: harvest_totals().failures == 8)
    began = elapsed()
    assert await harvester.drain() is None
    assert elapsed() - began < 0.1 < PAUSE_BASE_S
    running.cancel()


class LogsThatAreRead:
    """Logs of pods that are read until the test says that they have been read."""

    def __init__(self) -> None:
        self.notify: dict[str, Callable[[str], None]] = {}
        self.are_read = asyncio.Event()

    def observe_job(self, job: StoredGang) -> None: ...

    def observe(self, pods: Sequence[PodView]) -> None: ...

    def notify_when_read(self, pod: PodView, notify: Callable[[str], None]) -> bool:
        self.notify[pod.metadata.uid] = notify
        self.are_read.set()
        return True


async def test_drain_ends_if_a_pod_vanishes_while_its_log_is_read(gang):
    gang.pod(0)
    gang.plane.registry.delete(PODS, "train-0", NAMESPACE)
    logs = LogsThatAreRead()
    harvester = await gang.full_harvester(Harvester(gang.plane.client, gang.ledger(), logs))
    draining = asyncio.create_task(harvester.drain())
    await logs.are_read.wait()
    harvester.enqueue_deleted(await list_pods(gang.plane.client, gang.ref))
    for uid, notify in logs.notify.items():
        notify(uid)
    async with asyncio.timeout(60):
        assert await draining is None


async def test_harvester_stands_still_while_a_drain_fails(gang):
    gang.pod(0)
    gang.plane.arm("status", method="POST", path="/configmaps$", code=503, times=None)
    harvester = await gang.full_harvester()
    running = asyncio.create_task(harvester.run())
    await asyncio.sleep(0.1)
    before = len(gang.plane.faults.history)
    assert isinstance(await harvester.drain(), ServerError)
    assert len(gang.plane.faults.history) - before <= DRAIN_FAILURES_MAX
    gang.plane.faults.remove()
    await gang.plane.until(lambda: not gang.plane.held())
    running.cancel()


async def test_drain_raises_an_unexpected_error(gang):
    gang.pod(0)
    harvester = await gang.full_harvester(gang.harvester(FailingLedger(gang.plane.client, gang.ref)))
    with pytest.raises(ZeroDivisionError):
        await harvester.drain()


async def test_gang_without_its_job_is_reported_and_not_recorded(gang):
    gang.pod(0, phase="Failed")
    harvester = await gang.full_harvester(Harvester(gang.plane.client, None))
    await harvester.drain()
    assert [one.rank for one in harvester.outcomes] == [0]
    assert (gang.plane.ledger(), gang.plane.held()) == ({}, [])


async def test_pods_of_an_ending_namespace_are_released_without_a_ledger(gang):
    gang.pod(0)
    gang.plane.registry.delete("namespaces", NAMESPACE, None)
    harvester = await gang.full_harvester()
    assert await harvester.drain() is None
    assert (len(harvester.outcomes), gang.plane.held()) == (1, [])


# -- A harvester dies before or after any of its requests is applied, and the next harvester completes the work ------

ROUNDS_MAX = 20
"""How many lists a harvester without faults needs at most, for any number of pods here."""


async def _harvest_all(client: Client, ref: GangRef, *, shard_bytes_max: int = 2000) -> None:
    """What a follower does at the end: list, record, release, until nothing is left."""
    harvester = Harvester(client, Ledger(client, ref, shard_bytes_max=shard_bytes_max))
    for _ in range(ROUNDS_MAX):
        harvester.enqueue(await list_pods(client, ref))
        if not harvester.backlog:
            return
        await harvester.drain()
    raise AssertionError(f"the harvest did not end after {ROUNDS_MAX} lists")


async def _ended_gang(plane: VirtualControlPlane, codes: list[int]) -> tuple[GangRef, set[str]]:
    """A gang whose pods have all ended and are held."""
    ref = plane.submit(workers=len(codes))
    await plane.until(lambda: plane.running_ranks() == len(codes))
    for pod, code in zip(plane.pods(), codes, strict=True):
        plane._end(pod, code, "x" * 500)
    return ref, {pod["metadata"]["uid"] for pod in plane.pods()}


REQUESTS = ("LIST pods", *["POST configmaps"] * 3, *["PATCH pods"] * 5, "LIST pods")
"""The requests of a harvest of five pods without faults."""


async def test_harvest_without_a_crash_sends_the_listed_requests(plane):
    client = CrashingClient(plane.client)
    ref, uids = await _ended_gang(plane, [0, 1, 0, 2, 0])
    await _harvest_all(client, ref)
    check_harvest(plane.history, uids)
    assert tuple(client.requests) == REQUESTS


@pytest.mark.parametrize("crash", crash_points(REQUESTS), ids=lambda crash: f"{crash} ({REQUESTS[crash.at]})")
async def test_harvest_that_crashes_is_completed_by_the_next_one(plane, crash):
    ref, uids = await _ended_gang(plane, [0, 1, 0, 2, 0])
    process = CrashingClient(plane.client, crash)
    with dies(process):
        await _harvest_all(process, ref)
    recorded_before_released(plane.history)
    await _harvest_all(plane.client, ref)
    check_harvest(plane.history, uids)


crashes = st.builds(Crash, st.integers(0, 12), st.booleans())


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([0, 1, 137]), min_size=1, max_size=6),
    st.lists(st.lists(crashes, min_size=1, max_size=3), max_size=3),
)
async def test_any_number_of_harvesters_may_die_side_by_side(codes: list[int], waves: list[list[Crash]]):
    async def harvest_until(crash: Crash) -> None:
        process = CrashingClient(plane.client, crash)
        with may_die(process):
            await _harvest_all(process, ref)

    async with VirtualControlPlane.running() as plane:
        ref, uids = await _ended_gang(plane, codes)
        for wave in waves:
            await asyncio.gather(*map(harvest_until, wave))
            recorded_before_released(plane.history)
        await _harvest_all(plane.client, ref)
        check_harvest(plane.history, uids)


# The writes at which the process of a follower dies.
WRITES = [
    pytest.param(method, path, Crash(at, applied), id=f"{method} {path} {Crash(at, applied)}")
    for method, path, times in (("POST", "/configmaps", 1), ("PATCH", "/configmaps", 1), ("PATCH", "/pods/", 3))
    for at in range(times)
    for applied in (False, True)
]


@pytest.mark.parametrize(("method", "path", "crash"), WRITES)
async def test_follower_that_dies_at_a_write_is_replaced(plane, method: str, path: str, crash: Crash):
    ref = plane.submit(workers=3)
    kind: Any = "drop-after" if crash.applied else "drop-before"
    plane.arm(kind, method=method, path=path, skip=crash.at)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 3)
    uids = {pod["metadata"]["uid"] for pod in plane.pods()}
    ranks = iter(range(3))
    while not plane.faults.history:
        plane.finish("train", rank := next(ranks))
        await plane.until(lambda left=2 - rank: plane.faults.history or len(plane.held()) == left)
    await following.kill()
    for rank in ranks:
        plane.finish("train", rank)
    event = await Follower(plane, ref).event()
    assert event.status == "succeeded"
    check_harvest(plane.history, uids)


# -- Releases leave connections for the requests of events, however many gangs are released at once ------------------


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
            group.create_task(release(server, pods, on_released))  # type: ignore[arg-type]
        await server.full.wait()
        server.answer.set()
    assert server.most == LOOP_IN_FLIGHT_MAX
    assert len(released) == len(set(released)) == 2 * LOOP_IN_FLIGHT_MAX
