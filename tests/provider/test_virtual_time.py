"""The event loop of the tests in virtual time."""

from __future__ import annotations

import asyncio

from airflow_provider_gangjobs.cluster.loop_local import Notification
from tests.provider.virtual_time import elapsed, in_virtual_time

pytestmark = in_virtual_time


async def test_timer_that_runs_a_rounding_error_early_leaves_a_wait_that_ends() -> None:
    """The loop runs timers that are due within its resolution together, and the clock shows the time of the first."""
    notification = Notification()
    until = elapsed() + 30
    waits = 0
    asyncio.get_running_loop().call_at(until - 2e-10, lambda: None)

    while elapsed() < until and waits < 1000:
        await notification.wait(until - elapsed())
        waits += 1

    assert waits < 10
