"""The Lease of a triggerer names its gangs, so that other triggerers do not ask Airflow about them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.ending.leases import (
    ALLOWED_AGAIN_S,
    DELETE_AFTER,
    LOOKS_PER_WRITE,
    MISSING_RULE,
    VALID_LOOKS,
    Leases,
)
from airflow_provider_gangjobs.ending.sweep import LOOK_EVERY_S
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.ownership import GRACE
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import LEASES
from tests.provider.virtual_control_plane import NAMESPACE, loop_clock
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    import pytest

    from tests.provider.virtual_control_plane import VirtualControlPlane

pytestmark = in_virtual_time
RENEW_EVERY_S = LOOKS_PER_WRITE * LOOK_EVERY_S
OURS, THEIRS = GangRef(NAMESPACE, "ours", "uid-ours"), GangRef(NAMESPACE, "theirs", "uid-theirs")


def leases() -> Leases:
    return Leases(NAMESPACE, "prod", look_every_s=LOOK_EVERY_S, clock=loop_clock())


def stored(plane: VirtualControlPlane) -> list[dict[str, Any]]:
    return plane.registry.list(LEASES, NAMESPACE)


async def followed_by_others(plane: VirtualControlPlane, one: Leases) -> list[bool] | None:
    follows = await one.others(plane.client)
    return None if follows is None else [follows(OURS), follows(THEIRS)]


async def test_another_process_sees_what_a_process_follows_until_the_lease_expires(plane):
    ours, theirs = leases(), leases()
    await ours.renew(plane.client, [OURS])
    await theirs.renew(plane.client, [THEIRS])
    assert await followed_by_others(plane, ours) == [False, True]
    await asyncio.sleep(VALID_LOOKS * LOOK_EVERY_S + 2)
    assert await followed_by_others(plane, ours) == [False, False]


async def test_lease_is_written_once_in_each_interval_however_often_it_is_renewed(plane):
    ours, interval = leases(), int(RENEW_EVERY_S)
    for _ in range(0, 3 * interval, 60):
        await ours.renew(plane.client, [OURS])
        await asyncio.sleep(60)
    requests = plane.client.statistics().requests
    assert (requests["create"], requests["patch"]) == (1, 3)  # the first patch finds no Lease
    assert len(stored(plane)) == 1


async def test_gang_that_is_not_named_is_named_at_once_and_one_that_is_not_followed_any_more_later(plane):
    ours, other = leases(), leases()
    await ours.renew(plane.client, [OURS])
    for _ in range(3):
        await ours.renew(plane.client, [OURS, THEIRS])
    assert await followed_by_others(plane, other) == [True, True]
    for _ in range(3):
        await ours.renew(plane.client, [THEIRS])
    assert await followed_by_others(plane, other) == [True, True]
    assert plane.client.statistics().requests["patch"] == 2  # the first one finds no Lease


async def test_renewal_follows_what_is_followed_and_survives_the_deletion_of_the_lease(plane):
    ours, other = leases(), leases()
    await ours.renew(plane.client, [OURS])
    plane.registry.delete(LEASES, stored(plane)[0]["metadata"]["name"], NAMESPACE)
    await asyncio.sleep(RENEW_EVERY_S)
    await ours.renew(plane.client, [THEIRS])
    assert await followed_by_others(plane, other) == [False, True]


async def test_lease_whose_creation_was_not_answered_is_not_created_twice(plane):
    plane.arm(FaultKind.DROP_AFTER, method="POST", path="leases")
    ours = leases()
    await ours.renew(plane.client, [OURS])
    await ours.renew(plane.client, [OURS, THEIRS])
    assert len(stored(plane)) == 1
    assert await followed_by_others(plane, leases()) == [True, True]


async def test_role_without_leases_is_reported_once_with_the_missing_rule(plane, caplog: pytest.LogCaptureFixture):
    plane.faults.add(Fault(FaultKind.STATUS, path="leases", code=403, times=None))
    ours = leases()
    for _ in range(3):
        await ours.renew(plane.client, [OURS])
        assert await followed_by_others(plane, ours) is None
    assert [MISSING_RULE in record.message for record in caplog.records if record.name == Leases.__module__] == [True]


async def test_leases_are_used_again_after_the_role_allows_them(plane):
    plane.faults.add(Fault(FaultKind.STATUS, path="leases", code=403, times=1))
    ours = leases()
    await ours.renew(plane.client, [OURS])
    await ours.renew(plane.client, [OURS])
    assert stored(plane) == []
    await asyncio.sleep(ALLOWED_AGAIN_S)
    await ours.renew(plane.client, [OURS])
    assert await followed_by_others(plane, leases()) == [True, False]


async def test_process_that_stops_removes_its_lease_and_others_remove_what_a_crash_left(plane):
    ours, crashed = leases(), leases()
    await crashed.renew(plane.client, [THEIRS])
    await asyncio.sleep(DELETE_AFTER.total_seconds() + GRACE.total_seconds())
    await ours.renew(plane.client, [OURS])
    await ours.others(plane.client)
    assert len(stored(plane)) == 1
    await ours.delete(plane.client)
    assert stored(plane) == []
