"""The end of a gang: which requests a follower sends before it returns the event, and what it verifies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.tracking.follow import follow
from airflow_provider_gangjobs.tracking.harvest import final_harvest
from airflow_provider_gangjobs.tracking.harvest.harvester import harvest_totals
from airflow_provider_gangjobs.tracking.harvest.ledger import decode
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS, PODS
from tests.crashes import CrashingClient
from tests.guarantees.harvest import check_harvest, counted_once
from tests.provider.virtual_control_plane import NAMESPACE, VIRTUAL_TIMEOUT_S, VirtualControlPlane
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef


class RecordingFollower:
    """A task that follows a gang, and the requests that it has sent since the last call of `forget`."""

    def __init__(self, plane: VirtualControlPlane, ref: GangRef, **options: Any) -> None:
        self.client = CrashingClient(plane.client)
        options |= {"report": lambda _: None, "now": plane.clock.now}
        self.task = asyncio.create_task(follow(self.client, ref, **options))

    def forget(self) -> None:
        self.client.requests.clear()

    async def event(self) -> GangEvent:
        async with asyncio.timeout(VIRTUAL_TIMEOUT_S):
            return await self.task

    def count_of(self, request: str) -> int:
        return self.client.requests.count(request)


def uids(plane: VirtualControlPlane) -> set[str]:
    return {pod["metadata"]["uid"] for pod in plane.pods()}


@in_virtual_time
async def test_observed_success_is_not_asked_about(plane):
    follower = RecordingFollower(plane, plane.submit(workers=3))
    await plane.until(lambda: plane.running_ranks() == 3)
    await asyncio.sleep(5)
    follower.forget()
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert (follower.count_of("GET jobs"), follower.count_of("LIST pods")) == (0, 0)
    check_harvest(plane.history, uids(plane))


@in_virtual_time
async def test_pods_of_a_failed_gang_are_listed(plane):
    follower = RecordingFollower(plane, plane.submit(workers=3))
    await plane.until(lambda: plane.running_ranks() == 3)
    follower.forget()
    there = uids(plane)
    plane.finish("train", 1, exit_code=3)
    assert (await follower.event()).status is Status.FAILED
    assert follower.count_of("LIST pods") >= 1
    check_harvest(plane.history, there)


@in_virtual_time
async def test_pods_of_a_gang_that_a_queue_had_suspended_are_listed(plane):
    ref = plane.submit(workers=2)
    follower = RecordingFollower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 2)
    first = uids(plane)
    for suspend in (True, False):
        plane.registry.patch(JOBS, ref.name, NAMESPACE, {"spec": {"suspend": suspend}}, PatchKind.MERGE)
        await asyncio.sleep(30)
    await plane.until(lambda: plane.running_ranks() == 2)
    follower.forget()
    second = uids(plane)
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert follower.count_of("LIST pods") >= 1
    check_harvest(plane.history, first | second)


@in_virtual_time
async def test_pod_that_was_created_while_the_watch_was_lost_is_found_next_to_a_complete_gang(plane):
    """A controller that has lost its state may create a further pod of a Job that has succeeded."""
    follower = RecordingFollower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    await asyncio.sleep(5)
    plane.arm("status", method="GET", path="/pods$", query="watch=", times=None, code=410)
    plane.arm("drop-after", method="GET", path="/pods$", query="watch=", times=1, chunks=1)
    twin = plane.pod("train", 0)
    meta = {key: twin["metadata"][key] for key in ("labels", "annotations", "ownerReferences", "finalizers")}
    await asyncio.sleep(400)  # the watch has ended, and the next is refused: the list is read again
    twin = plane.registry.create(PODS, {"metadata": {**meta, "name": "twin"}, "spec": {**twin["spec"]}}, NAMESPACE)
    plane._end(twin, 0, "")
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert plane.held() == []
    assert twin["metadata"]["uid"] in plane.ledger()


def treat_every_gang_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_harvest, "LISTED_AT_ONCE_MAX", 1)
    monkeypatch.setattr(final_harvest, "LAG_PER_POD_S", 5.0)


@in_virtual_time
async def test_pods_are_processed_at_most_as_often_as_they_change(plane):
    """If each change of a pod processed all pods, the end of a large gang would take quadratic time."""
    follower = RecordingFollower(plane, plane.submit(workers=12))
    await plane.until(lambda: plane.running_ranks() == 12)
    plane.delete_job(propagation="Orphan")
    for rank in range(12):
        await asyncio.sleep(1)
        plane.finish("train", rank)
    assert (await follower.event()).status is Status.DELETED
    assert 12 <= harvest_totals().views <= len(plane.history.of(PODS))
    assert plane.held() == []


@pytest.mark.parametrize("held", [True, False])
@in_virtual_time
async def test_large_gang_is_not_listed_for_a_watch_that_is_seconds_behind(plane, held: bool, monkeypatch):
    treat_every_gang_as_large(monkeypatch)
    ref = plane.submit(workers=3)
    await plane.until(lambda: plane.running_ranks() == 3)
    if not held:
        for pod in plane.held():
            patch = {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}
            plane.registry.patch(PODS, pod["metadata"]["name"], NAMESPACE, patch, PatchKind.MERGE)
    plane.arm("delay", method="GET", path="/pods$", query="watch=", delay_s=8.0)
    follower = RecordingFollower(plane, ref)
    await asyncio.sleep(2)
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert follower.count_of("LIST pods") == 0
    assert elapsed() > 8
    counted_once(plane.history, uids(plane))
    assert plane.held() == []


@pytest.mark.parametrize("large", [True, False])
@in_virtual_time
async def test_pods_of_a_watch_that_died_silently_are_recorded_as_they_ended(plane, large: bool, monkeypatch):
    if large:
        treat_every_gang_as_large(monkeypatch)
    ref = plane.submit(workers=3)
    await plane.until(lambda: plane.running_ranks() == 3)
    plane.arm("half-open", method="GET", path="/pods$", query="watch=")
    follower = RecordingFollower(plane, ref)
    await asyncio.sleep(2)
    began = elapsed()
    plane.finish_all()
    event = await follower.event()
    assert (event.status, event.notes) == (Status.SUCCEEDED, ())
    assert elapsed() - began < (120 if large else 10), "the event waited until the watch was known to be dead"
    assert {decode(uid, text).outcome for uid, text in plane.ledger().items()} == {OutcomeKind.SUCCEEDED}
    check_harvest(plane.history, uids(plane))
