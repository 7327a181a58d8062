"""`gangjobs tidy` without Airflow releases pods without a follower, and ends no live gang."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.ending.sweep import sweep_once
from airflow_provider_gangjobs.gang.state.ownership import SweepAction
from airflow_provider_gangjobs.service import follow
from tests.provider.test_trigger_sweeping import submit
from tests.provider.virtual_control_plane import NAMESPACE
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
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
