"""Harvest and ledger against an API server whose pods the test creates itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_gangjobs.cluster.errors import Forbidden, ServerError
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST, LABEL_GANG, LABEL_JOB_UID
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind, outcome_of
from airflow_provider_gangjobs.kube.views import PodView, view
from airflow_provider_gangjobs.tracking import ledger as ledgers
from airflow_provider_gangjobs.tracking.harvest.harvester import (
    BATCH_PODS_MAX,
    DRAIN_FAILURES_MAX,
    PAUSE_BASE_S,
    Harvester,
)
from airflow_provider_gangjobs.tracking.ledger import Ledger, encode, read_ledger
from airflow_provider_gangjobs.tracking.read.outcomes import read_outcomes
from airflow_provider_gangjobs.tracking.read.pods import list_pods
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import CONFIGMAPS, PODS
from tests.guarantees.harvest import check_harvest
from tests.guarantees.history import is_held
from tests.provider.virtual_control_plane import INDEX, NAMESPACE, VirtualControlPlane, loop_clock
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome


class GangWithoutControllers:
    """A Job without controllers, and pods that are made in the state that a test needs."""

    def __init__(self, plane: VirtualControlPlane) -> None:
        self.plane = plane
        self.ref: GangRef = plane.submit(workers=4, gang=False)

    def pod(
        self, rank: int, *, phase: str = "Succeeded", message: str = "", held: bool = True, node: str | None = "node-0"
    ) -> dict[str, Any]:
        meta = {
            "name": f"train-{rank}",
            "labels": {LABEL_GANG: "train", "batch.kubernetes.io/controller-uid": self.ref.uid},
            "annotations": {INDEX: str(rank)},
            "finalizers": [FINALIZER_HARVEST] if held else [],
        }
        containers = [{"name": "main", "image": "i"}]
        placed = {"nodeName": node} if node else {}
        body = {"metadata": meta, "spec": {"containers": containers, **placed}}
        made = self.plane.registry.create(PODS, body, NAMESPACE)
        if phase == "Pending":
            return made
        ended = {"exitCode": int(phase == "Failed"), "message": message, "finishedAt": "2026-01-01T00:00:09Z"}
        state = {"terminated": ended} if phase != "Running" else {"running": {}}
        container = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": phase, "containerStatuses": [container]}
        patch = {"status": status}
        return self.plane.registry.patch(
            PODS, made["metadata"]["name"], NAMESPACE, patch, PatchKind.MERGE, subresource="status"
        )

    def ledger(self, **options: Any) -> Ledger:
        return Ledger(self.plane.client, self.ref, **options)

    def harvester(self, ledger: Ledger | None = None) -> Harvester:
        return Harvester(self.plane.client, ledger or self.ledger())

    async def enqueue_all(self, harvester: Harvester) -> None:
        harvester.enqueue(await list_pods(self.plane.client, self.ref))

    def shards(self) -> list[dict[str, Any]]:
        return self.plane.registry.list(CONFIGMAPS, NAMESPACE, ledgers.selector(self.ref))


class FailingLedger(Ledger):
    """One with a fault."""

    async def begin(self, read_outcomes: Iterable[Outcome]) -> list[Outcome]:
        raise ZeroDivisionError


async def drained(harvester: Harvester) -> Exception | None:
    """What `drain` answers while the harvester runs."""
    running = asyncio.create_task(harvester.run(clock=loop_clock()))
    try:
        return await harvester.drain()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_only_ended_pods_are_harvested():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        for rank, phase in enumerate(["Succeeded", "Failed", "Running", "Pending"]):
            gang.pod(rank, phase=phase)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        assert await drained(harvester) is None
        assert (harvester.statistics().recorded, harvester.statistics().released) == (2, 2)
        assert [is_held(pod) for pod in plane.pods()] == [False, False, True, True]
        found = await read_outcomes(plane.client, gang.ref)
        assert [(one.rank, one.outcome) for one in found] == [(0, OutcomeKind.SUCCEEDED), (1, OutcomeKind.FAILED)]


@in_virtual_time
async def test_held_pods_are_released_once_no_more_end():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0)
        harvester = gang.harvester()
        harvesting = asyncio.create_task(harvester.run(clock=loop_clock()))
        await gang.enqueue_all(harvester)
        async with asyncio.timeout(5):
            while harvester.backlog:  # noqa: ASYNC110 - a harvester tells nobody
                await asyncio.sleep(0.1)
        harvesting.cancel()
        assert not any(map(is_held, plane.pods()))


@in_virtual_time
async def test_pod_deleted_before_it_was_bound_is_harvested():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0, phase="Pending", node=None)
        plane.registry.delete(PODS, "train-0", NAMESPACE)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        await drained(harvester)
        assert plane.pods() == []
        assert [one.outcome for one in await read_outcomes(plane.client, gang.ref)] == [OutcomeKind.DELETED]


@in_virtual_time
async def test_bound_pod_that_is_deleted_is_waited_for():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0, phase="Running")
        plane.registry.delete(PODS, "train-0", NAMESPACE)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        assert harvester.backlog == 0


@in_virtual_time
async def test_pod_that_another_process_released_is_recorded():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0, held=False)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        await drained(harvester)
        assert len(plane.ledger()) == 1
        await gang.enqueue_all(harvester)
        assert harvester.backlog == 0


@in_virtual_time
async def test_vanished_pod_is_recorded_by_its_last_view():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        last = view(PodView, gang.pod(0, phase="Running", held=False))
        plane.registry.delete(PODS, "train-0", NAMESPACE, grace_period_s=0)
        harvester = gang.harvester()
        harvester.enqueue_deleted([last])
        assert await drained(harvester) is None
        assert [one.outcome for one in await read_outcomes(plane.client, gang.ref)] == [OutcomeKind.DELETED]
        assert harvester.backlog == 0


@in_virtual_time
async def test_pod_that_was_replaced_counts_as_released():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        first = view(PodView, gang.pod(0, held=False))
        plane.registry.delete(PODS, "train-0", NAMESPACE, grace_period_s=0)
        gang.pod(0, phase="Running")
        harvester = gang.harvester()
        harvester.enqueue([_with_finalizer(first)])
        assert (await drained(harvester), harvester.backlog) == (None, 0)
        assert is_held(plane.pods()[0])


def _with_finalizer(pod: PodView) -> PodView:
    meta = msgspec.structs.replace(pod.metadata, finalizers=(FINALIZER_HARVEST,))
    return msgspec.structs.replace(pod, metadata=meta)


@in_virtual_time
async def test_nothing_is_released_if_it_cannot_be_recorded():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0)
        plane.arm("status", method="POST", path="/configmaps", code=403, times=DRAIN_FAILURES_MAX)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        assert isinstance(await drained(harvester), Forbidden)
        assert (harvester.backlog, len(plane.held())) == (1, 1)
        assert await drained(harvester) is None
        assert plane.held() == []


@in_virtual_time
async def test_one_pod_that_fails_does_not_stop_the_others():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        for rank in range(4):
            gang.pod(rank)
        plane.arm("status", method="PATCH", path="/pods/train-1", code=500, times=DRAIN_FAILURES_MAX)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        assert isinstance(await drained(harvester), ServerError)
        assert (harvester.statistics().recorded, harvester.statistics().released) == (4, 3)
        assert [pod["metadata"]["name"] for pod in plane.held()] == ["train-1"]


@in_virtual_time
async def test_batches_are_capped_and_begin_with_terminating_pods():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        for rank in range(BATCH_PODS_MAX + 3):
            gang.pod(rank)
        terminating = f"train-{BATCH_PODS_MAX + 1}"
        plane.registry.delete(PODS, terminating, NAMESPACE)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        assert await drained(harvester) is None
        parts = [change.obj["data"] for change in plane.history.of(CONFIGMAPS)]
        assert [len(part) for part in parts] == [BATCH_PODS_MAX, BATCH_PODS_MAX + 3]
        pods = plane.history.of(PODS)
        freed = [change.obj for change in pods if change.is_deletion or not is_held(change.obj)]
        assert freed[0]["metadata"]["name"] == terminating
        assert plane.held() == []
        assert len(plane.ledger()) == BATCH_PODS_MAX + 3


@in_virtual_time
async def test_backlog_is_harvested_with_pauses_while_it_fails():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0)
        plane.arm("status", method="PATCH", path="/pods/", code=429, retry_after_s=40, times=3)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        running = asyncio.create_task(harvester.run(clock=loop_clock()))
        await plane.until(lambda: not plane.held())
        assert elapsed() >= 100
        assert len(plane.faults.history) == 3
        running.cancel()


@in_virtual_time
async def test_drain_does_not_wait_for_a_pause_of_the_harvester():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0)
        plane.arm("status", method="PATCH", path="/pods/", code=403, times=8)
        harvester = gang.harvester()
        running = asyncio.create_task(harvester.run(clock=loop_clock()))
        await gang.enqueue_all(harvester)
        await plane.until(lambda: harvester.statistics().failures == 8)
        began = elapsed()
        assert await harvester.drain() is None
        assert elapsed() - began < 0.1 < PAUSE_BASE_S
        running.cancel()


@in_virtual_time
async def test_drain_raises_what_ended_the_harvester():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0)
        harvester = gang.harvester(FailingLedger(plane.client, gang.ref))
        await gang.enqueue_all(harvester)
        with pytest.raises(ZeroDivisionError):
            await drained(harvester)


@in_virtual_time
async def test_gang_without_its_job_is_reported_and_not_recorded():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0, phase="Failed")
        harvester = Harvester(plane.client, None)
        await gang.enqueue_all(harvester)
        await drained(harvester)
        assert [one.rank for one in harvester.outcomes] == [0]
        assert (plane.ledger(), plane.held()) == ({}, [])


@in_virtual_time
async def test_ending_namespace_is_not_held_up():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        gang.pod(0)
        plane.registry.delete("namespaces", NAMESPACE, None)
        harvester = gang.harvester()
        await gang.enqueue_all(harvester)
        assert await drained(harvester) is None
        assert (len(harvester.outcomes), plane.held()) == (1, [])


# -- the ledger --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_ledger_belongs_to_its_job():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pod = view(PodView, gang.pod(0))
        await gang.ledger().record([outcome_of(pod)])
        (shard,) = gang.shards()
        assert shard["metadata"]["name"] == "train-ledger-0"
        assert [owner["uid"] for owner in shard["metadata"]["ownerReferences"]] == [gang.ref.uid]
        assert set(shard["data"]) == {pod.metadata.uid}


@in_virtual_time
async def test_full_shard_is_followed_by_the_next():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(10)]
        await gang.ledger(shard_bytes_max=2000).record(map(outcome_of, pods))
        sizes = [sum(len(k) + len(v) for k, v in shard["data"].items()) for shard in gang.shards()]
        assert len(sizes) > 3
        assert max(sizes) <= 2000
        assert len(await read_ledger(plane.client, gang.ref)) == 10


@in_virtual_time
async def test_new_harvester_continues_in_the_last_shard():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(6)]
        for pod in pods:
            await gang.ledger(shard_bytes_max=2000).record([outcome_of(pod)])
        assert [len(shard["data"]) for shard in gang.shards()] == [2, 2, 2]


@in_virtual_time
async def test_outcomes_are_returned_in_parts_and_each_once():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(6)]
        for pod in [*pods, pods[0]]:
            await gang.ledger(shard_bytes_max=2000).record([outcome_of(pod)])
        twice = {"data": {pods[0].metadata.uid: encode(outcome_of(pods[0]))}}
        plane.registry.patch(CONFIGMAPS, "train-ledger-2", NAMESPACE, twice, PatchKind.MERGE)
        ledger, parts = gang.ledger(), []
        await ledger.load(parts.append)
        await ledger.load(parts.append)
        assert [len(part) for part in parts] == [2, 2, 2]
        assert sorted(outcome.uid for part in parts for outcome in part) == sorted(ledger.recorded)
        assert set(ledger.recorded) == {pod.metadata.uid for pod in pods}


@in_virtual_time
async def test_ledger_that_was_read_in_part_is_read_again_from_its_beginning():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(24)]
        for first in range(0, len(pods), 2):
            await gang.ledger(shard_bytes_max=2000).record(map(outcome_of, pods[first : first + 2]))
        plane.arm("status", method="GET", path="/configmaps$", query="continue=", times=None, code=403)
        ledger, parts = gang.ledger(), []
        with pytest.raises(Forbidden):
            await ledger.load(parts.append)
        assert parts
        assert not ledger.recorded, "what was not read may be recorded too"
        plane.faults.remove()
        await ledger.load(parts.append)
        assert set(ledger.recorded) == {pod.metadata.uid for pod in pods}


@in_virtual_time
async def test_shard_that_the_server_finds_too_large_is_left():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pods = [view(PodView, gang.pod(rank, message="x" * 4000)) for rank in range(300)]
        await gang.ledger(shard_bytes_max=3 * 2**20).record(map(outcome_of, pods[:100]))
        ledger = gang.ledger(shard_bytes_max=3 * 2**20)
        for start in range(100, 300, 100):
            await ledger.record(map(outcome_of, pods[start : start + 100]))
        assert len(await read_ledger(plane.client, gang.ref)) == 300
        assert len(gang.shards()) == 2


@in_virtual_time
async def test_ledger_of_an_earlier_job_is_left_alone():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pod = view(PodView, gang.pod(0))
        labels = {LABEL_GANG: "train", LABEL_JOB_UID: "earlier"}
        meta = {"name": "train-ledger-0", "labels": labels}
        plane.registry.create(CONFIGMAPS, {"metadata": meta, "data": {"old": "1"}}, NAMESPACE)
        await gang.ledger().record([outcome_of(pod)])
        assert plane.registry.get(CONFIGMAPS, "train-ledger-0", NAMESPACE)["data"] == {"old": "1"}
        assert [shard["metadata"]["name"] for shard in gang.shards()] == ["train-ledger-1"]


@in_virtual_time
async def test_deleted_shard_is_made_again():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        first, second = (view(PodView, gang.pod(rank)) for rank in range(2))
        ledger = gang.ledger()
        await ledger.record([outcome_of(first)])
        plane.registry.delete(CONFIGMAPS, "train-ledger-0", NAMESPACE)
        await ledger.record([outcome_of(second)])
        assert set(plane.ledger()) == {second.metadata.uid}


@in_virtual_time
async def test_shard_replaced_by_a_person_is_not_written_to():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        first, second = (view(PodView, gang.pod(rank)) for rank in range(2))
        ledger = gang.ledger()
        await ledger.record([outcome_of(first)])
        plane.registry.delete(CONFIGMAPS, "train-ledger-0", NAMESPACE)
        plane.registry.create(CONFIGMAPS, {"metadata": {"name": "train-ledger-0"}, "data": {"mine": "1"}}, NAMESPACE)
        await ledger.record([outcome_of(second)])
        assert plane.registry.get(CONFIGMAPS, "train-ledger-0", NAMESPACE)["data"] == {"mine": "1"}
        assert set(plane.ledger()) == {second.metadata.uid}


@in_virtual_time
async def test_recording_twice_sends_nothing():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        outcome = outcome_of(view(PodView, gang.pod(0)))
        ledger = gang.ledger()
        await ledger.record([outcome])
        before = plane.client.statistics().requests
        await ledger.record([outcome])
        assert plane.client.statistics().requests == before


@in_virtual_time
async def test_two_writers_of_one_shard_keep_each_others_entries():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        pods = [view(PodView, gang.pod(rank)) for rank in range(8)]
        both = [gang.ledger(), gang.ledger()]
        await asyncio.gather(*(both[n % 2].record([outcome_of(pod)]) for n, pod in enumerate(pods[:2])))
        await asyncio.gather(*(one.record(map(outcome_of, pods)) for one in both))
        for pod in pods:
            plane.registry.patch(
                PODS, pod.metadata.name, NAMESPACE, {"metadata": {"finalizers": None}}, PatchKind.MERGE
            )
        check_harvest(plane.history, {pod.metadata.uid for pod in pods})


@in_virtual_time
async def test_ledger_that_cannot_be_read_is_not_empty():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        plane.arm("status", method="GET", path="/configmaps", code=403, times=None)
        with pytest.raises(LedgerUnavailable, match="default/train"):
            await read_outcomes(plane.client, gang.ref)


@in_virtual_time
async def test_orphaned_ledger_can_still_be_read(plane):
    gang = GangWithoutControllers(plane)
    await gang.ledger().record([outcome_of(view(PodView, gang.pod(7)))])
    plane.delete_job(propagation="Orphan")
    await plane.until(lambda: plane.job() is None)
    await asyncio.sleep(30)
    assert [one.rank for one in await read_outcomes(plane.client, gang.ref)] == [7]


@in_virtual_time
async def test_last_view_never_overrules_who_saw_the_end():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        stale = gang.harvester()
        await stale.load_ledger()
        running = view(PodView, gang.pod(0, phase="Running"))
        plane.finish("train", 0, exit_code=3)
        other = gang.harvester()
        await gang.enqueue_all(other)
        await drained(other)
        plane.registry.delete(PODS, "train-0", NAMESPACE, grace_period_s=0)
        stale.enqueue_deleted([running])
        await drained(stale)
        assert [one.outcome for one in await read_outcomes(plane.client, gang.ref)] == [OutcomeKind.FAILED]
