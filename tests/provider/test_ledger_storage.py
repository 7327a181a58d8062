"""The ledger in ConfigMaps of the API server, and the outcomes of a gang that come from it, else from the pods."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.errors import Forbidden
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind, outcome_of
from airflow_provider_gangjobs.kube.views import PodView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG, LABEL_JOB_UID
from airflow_provider_gangjobs.tracking.harvest.collect import CollectedOutcomes, collect_outcomes, read_outcomes
from airflow_provider_gangjobs.tracking.harvest.ledger import SHARDS_PER_PAGE, encode, read_ledger
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import CONFIGMAPS, PODS
from tests.crashes import CrashingClient
from tests.guarantees.harvest import check_harvest
from tests.guarantees.history import is_held
from tests.provider.gang_without_controllers import GangWithoutControllers
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from typing import Any

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent

pytestmark = in_virtual_time


# -- The ledger in ConfigMaps of the API server: shards, writers at the same time, and reads that fail ---------------


async def test_ledger_belongs_to_its_job(gang):
    pod = view(PodView, gang.pod(0))
    await gang.ledger().record([outcome_of(pod)])
    (shard,) = gang.shards()
    assert shard["metadata"]["name"] == "train-ledger-0"
    assert [owner["uid"] for owner in shard["metadata"]["ownerReferences"]] == [gang.ref.uid]
    assert set(shard["data"]) == {pod.metadata.uid}


async def test_full_shard_is_followed_by_the_next(gang):
    pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(10)]
    await gang.ledger(shard_bytes_max=2000).record(map(outcome_of, pods))
    sizes = [sum(len(k) + len(v) for k, v in shard["data"].items()) for shard in gang.shards()]
    assert len(sizes) > 3
    assert max(sizes) <= 2000
    assert len(await read_ledger(gang.plane.client, gang.ref)) == 10


async def test_new_harvester_continues_in_the_last_shard(gang):
    pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(6)]
    for pod in pods:
        await gang.ledger(shard_bytes_max=2000).record([outcome_of(pod)])
    assert [len(shard["data"]) for shard in gang.shards()] == [2, 2, 2]


async def test_outcomes_are_returned_in_parts_and_each_once(gang):
    pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(6)]
    for pod in [*pods, pods[0]]:
        await gang.ledger(shard_bytes_max=2000).record([outcome_of(pod)])
    twice = {"data": {pods[0].metadata.uid: encode(outcome_of(pods[0]))}}
    gang.plane.registry.patch(CONFIGMAPS, "train-ledger-2", NAMESPACE, twice, PatchKind.MERGE)
    ledger, parts = gang.ledger(), []
    await ledger.load(parts.append)
    await ledger.load(parts.append)
    assert [len(part) for part in parts] == [2, 2, 2]
    assert sorted(outcome.uid for part in parts for outcome in part) == sorted(ledger.recorded)
    assert set(ledger.recorded) == {pod.metadata.uid for pod in pods}


async def test_ledger_that_was_read_in_part_is_read_again_from_its_beginning(gang):
    pods = [view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(SHARDS_PER_PAGE + 1)]
    await gang.ledger(shard_bytes_max=600).record(map(outcome_of, pods))
    gang.plane.arm("status", method="GET", path="/configmaps$", query="continue=", times=None, code=403)
    ledger, parts = gang.ledger(), []
    with pytest.raises(Forbidden):
        await ledger.load(parts.append)
    assert parts
    assert not ledger.recorded, "a partial read is not the whole ledger"
    gang.plane.faults.remove()
    await ledger.load(parts.append)
    assert set(ledger.recorded) == {pod.metadata.uid for pod in pods}


async def test_outcomes_are_told_as_stored_also_if_the_next_cannot_be_stored(gang):
    first, *others = (view(PodView, gang.pod(rank, message="x" * 400)) for rank in range(4))
    ledger, stored = gang.ledger(shard_bytes_max=2000), []
    await ledger.record([outcome_of(first)])
    gang.plane.arm("status", method="POST", path="/configmaps$", times=1, code=403)
    with pytest.raises(Forbidden):
        await ledger.record(map(outcome_of, others), on_stored=stored.append)
    assert [len(part) for part in stored] == [1]
    await ledger.record(map(outcome_of, others), on_stored=stored.append)
    assert {outcome.uid for part in stored for outcome in part} == {pod.metadata.uid for pod in others}


async def test_shard_that_the_server_finds_too_large_is_followed_by_the_next(gang):
    pods = [view(PodView, gang.pod(rank, message="x" * 4000)) for rank in range(300)]
    await gang.ledger(shard_bytes_max=3 * 2**20).record(map(outcome_of, pods[:100]))
    ledger = gang.ledger(shard_bytes_max=3 * 2**20)
    for start in range(100, 300, 100):
        await ledger.record(map(outcome_of, pods[start : start + 100]))
    assert len(await read_ledger(gang.plane.client, gang.ref)) == 300
    assert len(gang.shards()) == 2


async def test_ledger_of_an_earlier_job_is_not_changed(gang):
    pod = view(PodView, gang.pod(0))
    labels = {LABEL_GANG: "train", LABEL_JOB_UID: "earlier"}
    meta = {"name": "train-ledger-0", "labels": labels}
    gang.plane.registry.create(CONFIGMAPS, {"metadata": meta, "data": {"old": "1"}}, NAMESPACE)
    await gang.ledger().record([outcome_of(pod)])
    assert gang.plane.registry.get(CONFIGMAPS, "train-ledger-0", NAMESPACE)["data"] == {"old": "1"}
    assert [shard["metadata"]["name"] for shard in gang.shards()] == ["train-ledger-1"]


async def test_copy_of_a_shard_is_no_part_of_the_ledger(gang):
    first, second = (view(PodView, gang.pod(rank)) for rank in range(2))
    await gang.ledger().record([outcome_of(first)])
    (shard,) = gang.shards()
    kept = {"name": "train-ledger-backup", "labels": shard["metadata"]["labels"]}
    copied = {"data": {first.metadata.uid: "old", "note": "kept by me"}}
    gang.plane.registry.create(CONFIGMAPS, {"metadata": kept, **copied}, NAMESPACE)
    await gang.ledger().record([outcome_of(second)])
    uids = {first.metadata.uid, second.metadata.uid}
    assert {each.uid for each in await read_ledger(gang.plane.client, gang.ref)} == uids
    assert gang.plane.registry.get(CONFIGMAPS, "train-ledger-backup", NAMESPACE)["data"] == copied["data"]


async def test_deleted_shard_is_created_again(gang):
    first, second = (view(PodView, gang.pod(rank)) for rank in range(2))
    ledger = gang.ledger()
    await ledger.record([outcome_of(first)])
    gang.plane.registry.delete(CONFIGMAPS, "train-ledger-0", NAMESPACE)
    await ledger.record([outcome_of(second)])
    assert set(gang.plane.ledger()) == {second.metadata.uid}


async def test_shard_replaced_by_a_person_is_not_written_to(gang):
    first, second = (view(PodView, gang.pod(rank)) for rank in range(2))
    ledger = gang.ledger()
    await ledger.record([outcome_of(first)])
    gang.plane.registry.delete(CONFIGMAPS, "train-ledger-0", NAMESPACE)
    gang.plane.registry.create(CONFIGMAPS, {"metadata": {"name": "train-ledger-0"}, "data": {"mine": "1"}}, NAMESPACE)
    await ledger.record([outcome_of(second)])
    assert gang.plane.registry.get(CONFIGMAPS, "train-ledger-0", NAMESPACE)["data"] == {"mine": "1"}
    assert set(gang.plane.ledger()) == {second.metadata.uid}


async def test_recording_twice_sends_nothing(gang):
    outcome = outcome_of(view(PodView, gang.pod(0)))
    ledger = gang.ledger()
    await ledger.record([outcome])
    before = gang.plane.client.statistics().requests
    await ledger.record([outcome])
    assert gang.plane.client.statistics().requests == before


async def test_two_writers_of_one_shard_keep_each_others_entries(gang):
    pods = [view(PodView, gang.pod(rank)) for rank in range(8)]
    both = [gang.ledger(), gang.ledger()]
    await asyncio.gather(*(both[n % 2].record([outcome_of(pod)]) for n, pod in enumerate(pods[:2])))
    await asyncio.gather(*(one.record(map(outcome_of, pods)) for one in both))
    for pod in pods:
        gang.plane.registry.patch(
            PODS, pod.metadata.name, NAMESPACE, {"metadata": {"finalizers": None}}, PatchKind.MERGE
        )
    check_harvest(gang.plane.history, {pod.metadata.uid for pod in pods})


async def test_ledger_that_cannot_be_read_is_not_empty(gang):
    gang.plane.arm("status", method="GET", path="/configmaps", code=403, times=None)
    with pytest.raises(LedgerUnavailable, match="default/train"):
        await read_outcomes(gang.plane.client, gang.ref)


async def test_orphaned_ledger_can_still_be_read(plane):
    gang = GangWithoutControllers(plane)
    await gang.ledger().record([outcome_of(view(PodView, gang.pod(7)))])
    plane.delete_job(propagation="Orphan")
    await plane.until(lambda: plane.job() is None)
    await asyncio.sleep(30)
    assert [one.rank for one in await read_outcomes(plane.client, gang.ref)] == [7]


async def test_outcome_from_a_last_view_never_replaces_a_recorded_outcome(gang):
    stale = gang.harvester()
    await stale.load_ledger()
    running = view(PodView, gang.pod(0, phase="Running"))
    gang.plane.finish("train", 0, exit_code=3)
    await (await gang.full_harvester()).drain()
    gang.plane.registry.delete(PODS, "train-0", NAMESPACE, grace_period_s=0)
    stale.enqueue_deleted([running])
    await stale.drain()
    assert [one.outcome for one in await read_outcomes(gang.plane.client, gang.ref)] == [OutcomeKind.FAILED]


# -- The outcomes of a gang that succeeded come from the ledger, else from the pods, or are missing ------------------

REFUSED: dict[str, Any] = {"method": "POST", "path": "/configmaps", "times": None, "code": 403}
SECOND_RANK_DECIDES = {"successPolicy": {"rules": [{"succeededIndexes": "1"}]}}


async def succeeded(
    plane: VirtualControlPlane, *, workers: int = 2, finish: int | None = None, **spec: Any
) -> GangEvent:
    """Run a gang whose ranks write their number as result, and return its event."""
    following = await Follower.of_running_gang(plane, workers=workers, **spec)
    for rank in range(workers) if finish is None else [finish]:
        plane.finish("train", rank, message=str(rank))
    return await following.event(within_s=300)


async def collect(plane: VirtualControlPlane, event: GangEvent) -> CollectedOutcomes:
    async with Client(plane.config, clock=loop_clock()) as client:
        return await collect_outcomes(client, event)


def messages(evidence: CollectedOutcomes) -> list[str]:
    return [outcome.message for outcome in evidence.outcomes]


def delete_ledger(plane: VirtualControlPlane) -> None:
    for shard in plane.registry.list(CONFIGMAPS, NAMESPACE):
        plane.registry.delete(CONFIGMAPS, shard["metadata"]["name"], NAMESPACE)


def delete_pod(plane: VirtualControlPlane, rank: int) -> None:
    plane.registry.delete(PODS, plane.pod("train", rank)["metadata"]["name"], NAMESPACE, grace_period_s=0)


async def test_recorded_outcomes_cost_one_request(plane):
    event = await succeeded(plane)
    client = CrashingClient(plane.client)
    evidence = await collect_outcomes(client, event)
    assert (messages(evidence), evidence.is_complete, evidence.held) == (["0", "1"], True, 0)
    assert len(client.requests) == 1, client.requests


async def test_held_pods_are_recorded_and_released_when_the_ledger_can_be_written_again(plane):
    plane.arm("status", **REFUSED)
    event = await succeeded(plane)
    plane.faults.remove()
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.held, evidence.problem) == (["0", "1"], 0, "")
    assert (len(plane.ledger()), plane.held()) == (2, [])


async def test_outcomes_of_a_deleted_ledger_are_read_from_the_pods(plane):
    event = await succeeded(plane)
    delete_ledger(plane)
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.is_complete) == (["0", "1"], True)


async def test_outcome_that_is_neither_recorded_nor_in_a_pod_is_missing(plane):
    event = await succeeded(plane)
    delete_ledger(plane)
    delete_pod(plane, 1)
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.missing, evidence.job_is_gone) == (["0"], {1}, False)
    assert plane.job() is not None


async def test_outcomes_are_missing_once_the_job_was_deleted(plane):
    event = await succeeded(plane)
    plane.delete_job()
    await plane.until(lambda: not plane.pods() and not plane.ledger())
    evidence = await collect(plane, event)
    assert (evidence.missing, evidence.job_is_gone) == ({0, 1}, True)


async def test_held_pods_of_a_deleted_job_show_their_outcomes_and_stay_held(plane):
    plane.arm("status", **REFUSED)
    event = await succeeded(plane)
    plane.faults.remove()
    plane.delete_job()
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.is_complete, evidence.job_is_gone) == (["0", "1"], True, True)
    assert evidence.held == len(plane.held()) == 2
    assert plane.ledger() == {}


@pytest.mark.parametrize("is_cut", [True, False], ids=["marked", "not marked"])
async def test_indexes_that_the_event_lacks_are_read_from_the_job(plane, is_cut: bool):
    event = await succeeded(plane, finish=1, **SECOND_RANK_DECIDES)
    without = msgspec.structs.replace(event, completed_indexes="", completed_indexes_cut=is_cut)
    evidence = await collect(plane, without)
    assert evidence.completed is not None
    assert (evidence.completed, evidence.is_complete) == ({1}, True)


async def test_ranks_that_completed_are_unknown_without_list_and_job(plane):
    plane.arm("status", **REFUSED)
    event = await succeeded(plane)
    plane.delete_job()
    without = msgspec.structs.replace(event, completed_indexes="", completed_indexes_cut=True)
    evidence = await collect(plane, without)
    assert (messages(evidence), evidence.completed, evidence.is_complete) == (["0", "1"], None, False)


@pytest.mark.parametrize("path", ["/configmaps", "/jobs/", "/pods"])
async def test_failed_read_is_not_a_missing_outcome(plane, path: str):
    event = await succeeded(plane)
    delete_ledger(plane)
    plane.arm("status", method="GET", path=path, times=None, code=403)
    with pytest.raises(LedgerUnavailable):
        await collect(plane, event)
    assert not any(map(is_held, plane.pods()))
