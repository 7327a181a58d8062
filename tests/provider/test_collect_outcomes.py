"""The outcomes of a gang that succeeded come from the ledger, else from the pods, or are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.outcome.task_result import MissingOutcomes
from airflow_provider_gangjobs.tracking.harvest.collect import CollectedOutcomes, collect_outcomes
from gangjobs_sandbox.resources import CONFIGMAPS, PODS
from tests.crashes import CrashingClient
from tests.guarantees.history import is_held
from tests.provider.follower import Follower
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from typing import Any

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent

REFUSED: dict[str, Any] = {"method": "POST", "path": "/configmaps", "times": None, "code": 403}
SECOND_RANK_DECIDES = {"successPolicy": {"rules": [{"succeededIndexes": "1"}]}}


async def succeeded(
    plane: VirtualControlPlane, *, workers: int = 2, finish: int | None = None, **spec: Any
) -> GangEvent:
    """Run a gang whose ranks write their number as result, and return its event."""
    following = Follower(plane, plane.submit(workers=workers, **spec))
    await plane.until(lambda: plane.running_ranks() == workers)
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


@in_virtual_time
async def test_recorded_outcomes_cost_one_request(plane):
    event = await succeeded(plane)
    client = CrashingClient(plane.client)
    evidence = await collect_outcomes(client, event)
    assert (messages(evidence), evidence.is_complete, evidence.held) == (["0", "1"], True, 0)
    assert client.requests == ["LIST configmaps"]


@in_virtual_time
async def test_held_pods_are_recorded_and_released_when_the_ledger_can_be_written_again(plane):
    plane.arm("status", **REFUSED)
    event = await succeeded(plane)
    plane.faults.remove()
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.held, evidence.problem) == (["0", "1"], 0, "")
    assert (len(plane.ledger()), plane.held()) == (2, [])


@in_virtual_time
async def test_outcomes_of_a_deleted_ledger_are_read_from_the_pods(plane):
    event = await succeeded(plane)
    delete_ledger(plane)
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.is_complete) == (["0", "1"], True)


@in_virtual_time
async def test_outcome_that_is_neither_recorded_nor_in_a_pod_is_missing(plane):
    event = await succeeded(plane)
    delete_ledger(plane)
    delete_pod(plane, 1)
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.missing, evidence.job_is_gone) == (["0"], MissingOutcomes(1, (1,)), False)
    assert plane.job() is not None


@in_virtual_time
async def test_outcomes_are_missing_once_the_job_was_deleted(plane):
    event = await succeeded(plane)
    plane.delete_job()
    await plane.until(lambda: not plane.pods() and not plane.ledger())
    evidence = await collect(plane, event)
    assert (evidence.missing, evidence.job_is_gone) == (MissingOutcomes(2, (0, 1)), True)


@in_virtual_time
async def test_held_pods_of_a_deleted_job_show_their_outcomes_and_stay_held(plane):
    plane.arm("status", **REFUSED)
    event = await succeeded(plane)
    plane.faults.remove()
    plane.delete_job()
    evidence = await collect(plane, event)
    assert (messages(evidence), evidence.is_complete, evidence.job_is_gone) == (["0", "1"], True, True)
    assert evidence.held == len(plane.held()) == 2
    assert plane.ledger() == {}


@pytest.mark.parametrize("is_cut", [True, False], ids=["marked", "of an earlier version"])
@in_virtual_time
async def test_indexes_that_the_event_lacks_are_read_from_the_job(plane, is_cut: bool):
    event = await succeeded(plane, finish=1, **SECOND_RANK_DECIDES)
    without = msgspec.structs.replace(event, completed_indexes="", completed_indexes_cut=is_cut)
    evidence = await collect(plane, without)
    assert evidence.completed is not None
    assert (evidence.completed.ranks, evidence.is_complete) == ({1}, True)


@in_virtual_time
async def test_ranks_that_completed_are_unknown_without_list_and_job(plane):
    plane.arm("status", **REFUSED)
    event = await succeeded(plane)
    plane.delete_job()
    without = msgspec.structs.replace(event, completed_indexes="", completed_indexes_cut=True)
    evidence = await collect(plane, without)
    assert (messages(evidence), evidence.completed, evidence.is_complete) == (["0", "1"], None, False)


@pytest.mark.parametrize("path", ["/configmaps", "/jobs/", "/pods"])
@in_virtual_time
async def test_failed_read_is_not_a_missing_outcome(plane, path: str):
    event = await succeeded(plane)
    delete_ledger(plane)
    plane.arm("status", method="GET", path=path, times=None, code=403)
    with pytest.raises(LedgerUnavailable):
        await collect(plane, event)
    assert not any(map(is_held, plane.pods()))
