"""Delays the event of a short wait until Airflow has noticed that the worker of the deferred task has ended.

The supervisor of a worker may notice the end of the worker's process one heartbeat late. If the task runs again before
this end has reached the scheduler, the scheduler takes the old end for the end of the new run, and fails the task
(airflow#72716, #71580). Gangs that end within seconds, or that had ended before the deferral, would meet this often.
"""

from __future__ import annotations

import asyncio
from typing import Final

from airflow_provider_gangjobs.hooks.configuration import conf
from airflow_provider_gangjobs.triggers.log_channel import log_channel

HEARTBEAT_S: Final = 5.0
"""The default of Airflow's `[workers] min_heartbeat_interval`."""
MARGIN_S: Final = 1.5
"""The time in which the scheduler reads the report of the executor. The loop of the scheduler takes a second."""


def resume_delay_s() -> float:
    """Return how long after its deferral a task may resume, in seconds."""
    return conf.getfloat("workers", "min_heartbeat_interval", fallback=HEARTBEAT_S) + MARGIN_S


async def sleep_until_resumable(deferred_at: float) -> None:
    """Sleep until the task may resume, and until Airflow has read the last lines of the trigger; see `log_channel`.

    :param deferred_at: Time of the deferral, by the clock of the running loop.
    """
    await asyncio.sleep(max(0.0, deferred_at + resume_delay_s() - asyncio.get_running_loop().time()))
    await log_channel().drain()
