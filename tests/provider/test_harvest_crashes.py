"""A harvester dies before or after any of its requests is applied, and the next harvester completes the work.

In each case the outcome of each pod is recorded exactly once and before the pod is released, and no finalizer is left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.jobs.requests import list_pods
from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester
from airflow_provider_gangjobs.tracking.harvest.ledger import Ledger
from tests.crashes import Crash, CrashingClient, crash_points, dies, may_die
from tests.examples import examples
from tests.guarantees.harvest import check_harvest, recorded_before_released
from tests.provider.follower import Follower
from tests.provider.virtual_control_plane import VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

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


@in_virtual_time
async def test_harvest_without_a_crash_sends_the_listed_requests(plane):
    client = CrashingClient(plane.client)
    ref, uids = await _ended_gang(plane, [0, 1, 0, 2, 0])
    await _harvest_all(client, ref)
    check_harvest(plane.history, uids)
    assert tuple(client.requests) == REQUESTS


@pytest.mark.parametrize("crash", crash_points(REQUESTS), ids=lambda crash: f"{crash} ({REQUESTS[crash.at]})")
@in_virtual_time
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
@in_virtual_time
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
@in_virtual_time
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
