"""What a gang that waits for nodes reports: what is free, who holds the rest, and whether it can ever fit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.tracking.explanation import CAPACITY_WITHIN_S, read_view
from airflow_provider_gangjobs.tracking.overview import read_overview
from gangjobs_sandbox.resources import PODS
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider_gangjobs.gang.view import GangView

pytestmark = in_virtual_time

REFUSED = "assembling: 2 pods, none placed. Insufficient cpu on 2 of 2 nodes"
LATER = "Needs 2 x 1500m CPU; 2 of 4 CPU are free, room for 1 of 2 ranks now. 2 CPU are held by DAG etl"
FOUND = "The scheduler has found nodes for 1 of 2 pods"


@pytest.fixture
async def plane() -> AsyncIterator[VirtualControlPlane]:
    """Run a control plane with two nodes of two CPUs."""
    async with VirtualControlPlane.running(nodes=2, cpu="2") as plane:
        yield plane


def occupy(plane: VirtualControlPlane, cpu: str = "2", *, name: str = "other", node: str = "node-0") -> None:
    """Place a pod of another task."""
    containers = [{"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
    metadata = {"name": name, "labels": {"dag_id": "etl", "task_id": "load"}}
    plane.registry.create(PODS, {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}}, NAMESPACE)


def node_reads(plane: VirtualControlPlane) -> int:
    """Return how often the nodes were read since `armed` was called."""
    return sum(one["path"] == "/api/v1/nodes" for one in plane.faults.history)


def armed(plane: VirtualControlPlane, kind: str = "delay", **fault: Any) -> None:
    plane.arm(kind, method="GET", path="/api/v1/nodes$", times=None, **fault)


async def read_as_a_person(plane: VirtualControlPlane) -> GangView:
    """Read why the gang `train` waits, as the command line does."""
    return await read_view(plane.client, read_job(await plane.client.get(JOBS, "train", NAMESPACE)))


def lines(follower: Follower) -> list[str]:
    return [report.line for report in follower.reports]


async def test_gang_that_is_too_large_for_now_reports_once_what_is_free_and_who_holds_the_rest(plane):
    occupy(plane)
    follower = Follower(plane, plane.submit(workers=2, cpu="1500m"))
    await asyncio.sleep(1200)
    assert lines(follower)[-2:] == [f"{REFUSED}. {FOUND}", f"{REFUSED}. {LATER}"]
    count = len(lines(follower))
    occupy(plane, "300m", name="another", node="node-1")
    await asyncio.sleep(1200)
    assert len(lines(follower)) == count
    plane.registry.delete(PODS, "other", NAMESPACE)
    await plane.until(lambda: plane.running_ranks() == 2)
    await follower.kill()


async def test_gang_that_can_never_fit_reports_that_and_gets_another_remedy():
    async with VirtualControlPlane.running(nodes=2, cpu="4") as plane:
        ref = plane.submit(workers=2, cpu="64")
        follower = Follower(plane, ref, deadlines=Deadlines(assemble_s=60))
        event = await follower.event()
    never = "Can never fit on the present nodes: each rank requests 64 CPU, and the largest of 2 nodes has 4"
    assert lines(follower)[-1] == f"assembling: 2 pods, none placed. {never}"
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling")
    assert never in event.message
    assert "assemble_timeout" not in event.remedy


async def test_gang_that_fits_after_a_node_was_added_is_not_called_impossible_any_more():
    async with VirtualControlPlane.running(nodes=1, cpu="4") as plane:
        follower = Follower(plane, plane.submit(workers=2, cpu="8"))
        await asyncio.sleep(30)
        assert "Can never fit" in lines(follower)[-1]
        plane.node("large", cpu="16")
        await plane.until(lambda: plane.running_ranks() == 2)
        await asyncio.sleep(1)
        await follower.kill()
    assert lines(follower)[-1] == "running: 2/2 ranks"


SCALED_UP = "pod triggered scale-up: [{gpu-pool 1->3 (max: 10)}]"
NOT_SCALED_UP = "pod didn't trigger scale-up: 2 max node group size reached, 1 node(s) didn't match Pod's node affinity"
ADDS_NONE = "The autoscaler adds no nodes: 2 max node group size reached, 1 node(s) didn't match Pod's node affinity"


def say_as_autoscaler(plane: VirtualControlPlane, reason: str, message: str) -> None:
    plane.registry.record_event(plane.pod("train", 1), "Normal", reason, message, "cluster-autoscaler")


async def test_words_of_the_autoscaler_are_reported_and_told():
    async with VirtualControlPlane.running(nodes=2, cpu="4") as plane:
        follower = Follower(plane, plane.submit(workers=2, cpu="64"))
        await plane.until(lambda: len(plane.pods()) == 2)
        plane.registry.record_event(plane.pod("train", 0), "Normal", "NotTriggerScaleUp", "of another", "another")
        await asyncio.sleep(20)
        say_as_autoscaler(plane, "NotTriggerScaleUp", NOT_SCALED_UP)
        seen = await read_as_a_person(plane)
        overview = await read_overview(plane.client, NAMESPACE, installation="")
        await asyncio.sleep(60)
        say_as_autoscaler(plane, "TriggeredScaleUp", SCALED_UP)
        await asyncio.sleep(400)
        await follower.kill()
    never = "Can never fit on the present nodes: each rank requests 64 CPU, and the largest of 2 nodes has 4"
    refused = f"assembling: 2 pods, none placed. {never}"
    added = f"{refused}. The autoscaler adds nodes: [{{gpu-pool 1->3 (max: 10)}}]"
    assert lines(follower)[-3:] == [refused, f"{refused}. {ADDS_NONE}", added]
    assert seen.summary == overview.gangs[0].summary == f"{never}. {ADDS_NONE}"


async def test_reader_of_one_gang_is_told_what_its_follower_reports(plane):
    occupy(plane)
    follower = Follower(plane, plane.submit(workers=2, cpu="1500m"))
    await asyncio.sleep(30)
    seen = await read_as_a_person(plane)
    await follower.kill()
    assert lines(follower)[-1] == f"{REFUSED}. {LATER}"
    assert lines(follower)[-1].endswith(f". {seen.summary}")
    assert (seen.room, seen.ranks) == (1, 2)


async def test_reader_waits_only_some_seconds_for_the_capacity(plane):
    plane.submit(workers=2, cpu="64")
    await asyncio.sleep(3)  # of virtual time
    armed(plane, delay_s=60)
    began = asyncio.get_running_loop().time()
    seen = await read_as_a_person(plane)
    assert asyncio.get_running_loop().time() - began < CAPACITY_WITHIN_S + 1
    assert REFUSED.endswith(seen.summary.partition(". ")[0])
    assert "free" not in seen.summary


async def test_slow_cluster_is_not_asked_for_its_capacity_by_each_reader(plane):
    plane.submit(workers=2, cpu="64")
    await asyncio.sleep(3)  # of virtual time
    armed(plane, delay_s=60)
    for _ in range(4):
        await read_as_a_person(plane)
    assert node_reads(plane) == 1


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("POST", "/selfsubjectaccessreviews$", 403), ("GET", "/api/v1/nodes$", 503), ("GET", "/api/v1/pods$", 503)],
    ids=["not allowed", "nodes cannot be read", "pods cannot be read"],
)
async def test_without_an_answer_the_words_of_the_scheduler_are_reported(plane, method, path, code):
    occupy(plane)
    plane.arm("status", method=method, path=path, times=None, code=code)
    follower = Follower(plane, plane.submit(workers=2, cpu="1500m"))
    await asyncio.sleep(1300)
    await follower.kill()
    assert lines(follower)[-1] == f"{REFUSED}. {FOUND}"
    asked = [one for one in plane.faults.history if code == 403]
    assert len(asked) in {0, 2, 3}  # once in ten minutes


async def test_error_after_the_deadline_keeps_what_was_read_before():
    async with VirtualControlPlane.running(nodes=2, cpu="4") as plane:
        follower = Follower(plane, plane.submit(workers=2, cpu="64"), deadlines=Deadlines(assemble_s=90))
        await asyncio.sleep(30)
        armed(plane, "status", code=500)
        event = await follower.event()
    assert event.reason == "Deadline.assembling"
    assert "Can never fit" in event.message


async def test_gangs_that_wait_share_one_read_a_minute(plane):
    armed(plane)
    occupy(plane)
    followers = [Follower(plane, plane.submit(f"train-{n}", workers=2, cpu="1500m")) for n in range(9)]
    await asyncio.sleep(290)
    assert all(lines(one)[-1].endswith("DAG etl") for one in followers)
    assert node_reads(plane) == 1
    for one in followers:
        await one.kill()


async def test_gang_that_does_not_wait_for_nodes_reads_no_node(plane):
    armed(plane)
    follower = await Follower.of_running_gang(plane, workers=2)
    await asyncio.sleep(600)
    await follower.kill()
    assert node_reads(plane) == 0
