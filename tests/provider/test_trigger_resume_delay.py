"""A gang that ends at once resumes its task only after Airflow has noticed the worker's end (airflow#72716)."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_gangjobs.attempt.triggerer.log_streaming import MARGIN_S, sleep_until_resumable
from tests.provider.virtual_time import in_virtual_time

SETTING = "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"


@pytest.mark.parametrize(("interval_s", "ran_s"), [(5, 0.0), (5, 3.0), (1, 0.0)])
@in_virtual_time
async def test_task_resumes_one_heartbeat_after_its_deferral(
    interval_s: int, ran_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, str(interval_s))
    assert await resumed_after(ran_s) == interval_s + MARGIN_S


@in_virtual_time
async def test_gang_that_took_longer_resumes_its_task_at_once() -> None:
    assert await resumed_after(60.0) == 60.0


async def resumed_after(ran_s: float) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.sleep(ran_s)
    await sleep_until_resumable(started)
    return loop.time() - started
