"""Watches that lag: the answer of the server decides, and not the last view of the watch."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_gangjobs.cluster import resources
from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import Conflict
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.stop import stop_patch
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.provider.follower import Follower
from tests.provider.virtual_control_plane import VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time


def _fail_watches(plane: VirtualControlPlane, plural: str) -> None:
    """Let all further watches of these objects fail, and lists be rare."""
    plane.arm("status", method="GET", path=f"/{plural}$", query="watch=", times=None, code=500)


@in_virtual_time
async def test_pods_that_were_never_seen_are_harvested_at_the_end(plane):
    _fail_watches(plane, "pods")
    ref = plane.submit(workers=3, suspend=True)
    following = Follower(plane, ref)
    await asyncio.sleep(0.2)
    plane.registry.patch(JOBS, ref.name, ref.namespace, {"spec": {"suspend": False}}, PatchKind.MERGE)
    await plane.until(lambda: plane.running_ranks() == 3)
    plane.finish_all()
    event = await following.event()
    assert (event.status, len(event.ranks)) == (Status.SUCCEEDED, 3)
    assert Phase.RUNNING not in following.phases
    assert plane.held() == []


@in_virtual_time
async def test_job_that_was_not_seen_yet_is_not_gone(plane):
    _fail_watches(plane, "jobs")
    first = Follower(plane, plane.submit("first", workers=1))
    await plane.until(lambda: plane.running_ranks("first") == 1)
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    await asyncio.sleep(3)
    assert not following.task.done()
    plane.finish_all()
    assert (await following.event()).status is Status.SUCCEEDED
    await first.kill()


@in_virtual_time
async def test_running_gang_is_not_stopped_because_of_an_old_view(plane):
    _fail_watches(plane, "pods")
    following = Follower(plane, plane.submit(workers=3), deadlines=Deadlines(assemble_s=5))
    await plane.until(lambda: plane.running_ranks() == 3)
    await asyncio.sleep(30)
    assert plane.job()["spec"].get("suspend") in {None, False}
    plane.finish_all()
    assert (await following.event()).status is Status.SUCCEEDED


@in_virtual_time
async def test_stop_applies_only_to_the_job_with_the_expected_uid():
    async with VirtualControlPlane.running(jobs=False) as plane:
        ref = plane.submit()
        patch = stop_patch(stopped_by_user("too long"), read_job(plane.job()))
        assert not await patch_uid(plane.client, resources.JOBS, ref.name, ref.namespace, "another-uid", patch)
        assert not await patch_uid(plane.client, resources.JOBS, "nobody", ref.namespace, ref.uid, patch)
        assert plane.job()["spec"].get("suspend") in {None, False}
        assert await patch_uid(plane.client, resources.JOBS, ref.name, ref.namespace, ref.uid, patch)
        assert plane.job()["spec"]["activeDeadlineSeconds"] == 0


@in_virtual_time
async def test_stop_that_conflicts_with_another_writer_raises():
    async with VirtualControlPlane.running(jobs=False) as plane:
        ref = plane.submit()
        plane.faults.add(Fault(FaultKind.STATUS, code=409, method="PATCH", times=1))
        patch = stop_patch(stopped_by_user("too long"), read_job(plane.job()))
        with pytest.raises(Conflict):
            await patch_uid(plane.client, resources.JOBS, ref.name, ref.namespace, ref.uid, patch)
