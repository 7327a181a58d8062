"""`gangjobs tidy` without Airflow releases pods without a follower, and ends a live gang only on request."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.resources import LEASES
from airflow_provider_gangjobs.ending.leases import lease_body
from airflow_provider_gangjobs.ending.sweep import sweep_once
from airflow_provider_gangjobs.gang.state.ownership import SweepAction
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_ON_KILL
from airflow_provider_gangjobs.service import follow
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.provider.test_trigger_sweeping import submit
from tests.provider.virtual_control_plane import NAMESPACE
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from tests.provider.virtual_control_plane import VirtualControlPlane

pytestmark = in_virtual_time
HOUR = timedelta(hours=1)
HOUR_S = HOUR.total_seconds() + 60


async def sweep(plane: VirtualControlPlane, **options: Any) -> dict[str, SweepAction]:
    swept = await sweep_once(
        plane.client,
        NAMESPACE,
        follow=lambda ref: follow(plane.config, ref),
        **{"older_than": HOUR, **options},
    )
    assert [gang.error for gang in swept if gang.error] == []
    assert all(gang.decision.reason for gang in swept)
    return {gang.ref.name: gang.decision.action for gang in swept}


async def vanish(plane: VirtualControlPlane, name: str) -> None:
    submit(plane, name)
    await plane.until(lambda: plane.running_ranks(name) == 2)
    plane.delete_job(name)


async def test_pods_of_a_job_that_is_gone_are_released_after_the_age(plane):
    await vanish(plane, "gone")
    await asyncio.sleep(HOUR_S / 2)
    assert await sweep(plane) == {}
    await asyncio.sleep(HOUR_S / 2)
    assert await sweep(plane) == {"gone": SweepAction.RELEASE}
    assert plane.pods("gone") == []


async def test_pods_of_a_gang_that_is_over_are_recorded_and_released(plane):
    submit(plane, "over")
    await plane.until(lambda: plane.running_ranks("over") == 2)
    plane.finish_all("over")
    await asyncio.sleep(HOUR_S)
    assert await sweep(plane) == {"over": SweepAction.RELEASE}
    assert (plane.held("over"), len(plane.ledger("over"))) == ([], 2)


async def test_pods_of_a_gang_of_plain_python_that_is_over_are_recorded_and_released(plane):
    plane.submit("over", workers=2)
    await plane.until(lambda: plane.running_ranks("over") == 2)
    plane.finish_all("over")
    await asyncio.sleep(HOUR_S)
    assert await sweep(plane) == {"over": SweepAction.RELEASE}
    assert (plane.held("over"), len(plane.ledger("over"))) == ([], 2)


async def test_live_gang_stays_however_old_it_is(plane):
    submit(plane, "live")
    await asyncio.sleep(24 * HOUR_S)
    assert await sweep(plane) == {}
    assert plane.running_ranks("live") == 2


async def test_live_gang_that_nobody_follows_is_ended_if_asked_for(plane):
    submit(plane, "live")
    await asyncio.sleep(HOUR_S)
    assert await sweep(plane, end_unowned=2 * HOUR) == {}
    assert await sweep(plane, end_unowned=HOUR) == {"live": SweepAction.DELETE_LIVE}
    await plane.until(lambda: plane.job("live") is None, within_s=60)


async def follow_by_lease(plane: VirtualControlPlane, ref: GangRef) -> None:
    lease = lease_body("follower", "host", "prod", [ref], plane.clock.now(), timedelta(minutes=7))
    await plane.client.create(LEASES, lease, NAMESPACE)


@pytest.mark.parametrize(("lease_age_s", "ended"), [(HOUR_S / 2, False), (2 * HOUR_S, True)], ids=["valid", "old"])
async def test_gang_that_a_lease_names_is_not_ended(plane, lease_age_s: float, ended: bool):
    ref = submit(plane, "live")
    await asyncio.sleep(HOUR_S)
    await follow_by_lease(plane, ref)
    await asyncio.sleep(lease_age_s)
    await sweep(plane, end_unowned=HOUR)
    job = plane.job("live")
    assert (job is None or "deletionTimestamp" in job["metadata"]) is ended


async def test_gang_that_its_policy_keeps_is_not_ended(plane):
    submit(plane, "kept")
    kept = {"metadata": {"annotations": {ANNOTATION_ON_KILL: "keep"}}}
    plane.registry.patch(JOBS, "kept", NAMESPACE, kept, PatchKind.MERGE)
    await asyncio.sleep(HOUR_S)
    assert await sweep(plane, end_unowned=HOUR) == {}


async def test_dry_run_decides_about_each_gang_and_changes_nothing(plane):
    for name in ("live", "over"):
        submit(plane, name)
    await vanish(plane, "gone")
    plane.finish_all("over")
    await asyncio.sleep(HOUR_S)
    changes = len(plane.history.changes)
    assert await sweep(plane, dry_run=True) == {
        "live": SweepAction.LEAVE,
        "over": SweepAction.RELEASE,
        "gone": SweepAction.RELEASE,
    }
    assert len(plane.history.changes) == changes
