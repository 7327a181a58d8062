"""A harvester dies at any request, once before and once after it is applied; the next one ends the work.

Always: each pod's outcome exactly once, none released before it was recorded, no finalizer left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester
from airflow_provider_gangjobs.tracking.ledger import Ledger
from airflow_provider_gangjobs.tracking.read.pods import list_pods
from tests.crashes import Crash, CrashingClient, ProcessDied, crash_points
from tests.examples import examples
from tests.guarantees.harvest import check_harvest, recorded_before_released
from tests.provider.follower import Follower
from tests.provider.test_harvest import drained
from tests.provider.virtual_control_plane import VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

ROUNDS_MAX = 20
"""Of a harvester without faults, for any number of pods here."""


async def _harvest_all(client: Client, ref: GangRef, *, shard_bytes_max: int = 2000) -> None:
    """What a follower does at the end: list, record, release, until nothing is left."""
    harvester = Harvester(client, Ledger(client, ref, shard_bytes_max=shard_bytes_max))
    for _ in range(ROUNDS_MAX):
        harvester.enqueue(await list_pods(client, ref))
        if not harvester.backlog:
            return
        await drained(harvester)
    raise AssertionError("the harvest does not end")


async def _dies_somewhere(client: Client, ref: GangRef) -> None:
    with suppress(ProcessDied):
        try:
            await _harvest_all(client, ref)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group


async def _ended_gang(plane: VirtualControlPlane, codes: list[int]) -> tuple[GangRef, set[str]]:
    """A gang whose pods have all ended and are held."""
    ref = plane.submit(workers=len(codes))
    await plane.until(lambda: plane.running_ranks() == len(codes))
    for pod, code in zip(plane.pods(), codes, strict=True):
        plane._end(pod, code, "x" * 500)
    return ref, {pod["metadata"]["uid"] for pod in plane.pods()}


REQUESTS = ("LIST pods", *["POST configmaps"] * 3, *["PATCH pods"] * 5, "LIST pods")
"""What a harvest of five pods sends when nothing goes wrong."""


@in_virtual_time
async def test_clean_run_sends_the_requests_that_the_crashes_are_counted_by(plane):
    client = CrashingClient(plane.client)
    ref, uids = await _ended_gang(plane, [0, 1, 0, 2, 0])
    await _harvest_all(client, ref)
    check_harvest(plane.history, uids)
    assert tuple(client.requests) == REQUESTS


@pytest.mark.parametrize("crash", crash_points(REQUESTS), ids=lambda crash: f"{crash} ({REQUESTS[crash.at]})")
@in_virtual_time
async def test_crash_neither_loses_nor_doubles(plane, crash):
    ref, uids = await _ended_gang(plane, [0, 1, 0, 2, 0])
    await _dies_somewhere(CrashingClient(plane.client, crash), ref)
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
async def test_any_number_of_harvesters_may_die(codes: list[int], waves: list[list[Crash]]):
    async with VirtualControlPlane.running() as plane:
        ref, uids = await _ended_gang(plane, codes)
        for wave in waves:
            await asyncio.gather(*(_dies_somewhere(CrashingClient(plane.client, crash), ref) for crash in wave))
            recorded_before_released(plane.history)
        await _harvest_all(plane.client, ref)
        check_harvest(plane.history, uids)


# Writes of a follower, each in turn the last thing that its process does.
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
    plane.finish("train", 0)
    await plane.until(lambda: plane.faults.history or len(plane.ledger()) == 1)
    await following.kill()
    plane.finish("train", 1)
    plane.finish("train", 2)
    event = await Follower(plane, ref, clock=loop_clock()).event()
    assert event.status == "succeeded"
    check_harvest(plane.history, uids)
