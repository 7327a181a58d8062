"""A wake-up is never lost, and never given twice."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_gangjobs.cluster.informer import Wake


async def test_what_was_set_before_anyone_slept_wakes_once() -> None:
    wake = Wake()
    wake.set()
    wake.set()
    assert await wake.sleep()
    assert not await wake.sleep(0)


async def test_sleeper_is_woken() -> None:
    wake = Wake()
    sleeper = asyncio.create_task(wake.sleep())
    await asyncio.sleep(0)
    wake.set()
    assert await sleeper
    assert not await wake.sleep(0)


async def test_sleeper_that_is_cancelled_as_it_is_woken_leaves_the_wake_up_to_the_next() -> None:
    wake = Wake()
    sleeper = asyncio.create_task(wake.sleep())
    await asyncio.sleep(0)
    wake.set()
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert await wake.sleep()


async def test_nobody_is_left_behind_after_a_timeout() -> None:
    wake = Wake()
    assert not await wake.sleep(0)
    wake.set()
    assert await wake.sleep(0)


async def test_only_one_can_sleep() -> None:
    wake = Wake()
    sleeper = asyncio.create_task(wake.sleep())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await wake.sleep()
    wake.set()
    assert await sleeper
