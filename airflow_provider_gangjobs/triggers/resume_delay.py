"""A deferred task goes on only when Airflow has noticed that its worker left.

The supervisor of a worker may notice the end of its process one heartbeat late. If the task runs again before
that has reached the scheduler, the scheduler takes the old end for one of the new run and fails the task
(airflow#72716, #71580). Gangs that end within seconds, or had ended before, would meet this often.
"""

from __future__ import annotations

import asyncio
from typing import Final

from airflow.configuration import conf

HEARTBEAT_S: Final = 5.0
"""Airflow's own `[workers] min_heartbeat_interval`."""
MARGIN_S: Final = 1.5
"""For the scheduler to read what the executor reported; its loop takes a second."""


def resume_delay_s() -> float:
    """How long after its deferral a task may go on, in seconds."""
    return conf.getfloat("workers", "min_heartbeat_interval", fallback=HEARTBEAT_S) + MARGIN_S


async def sleep_until_resumable(deferred_at: float) -> None:
    """Sleep until then; `deferred_at` is a time of the running loop."""
    await asyncio.sleep(max(0.0, deferred_at + resume_delay_s() - asyncio.get_running_loop().time()))
