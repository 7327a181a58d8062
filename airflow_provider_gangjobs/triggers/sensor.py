"""The triggers of sensors, which wait for gangs that belong to somebody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.attempt.metrics import report_metrics
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import sleep_until_resumable
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import SelectionArgs, wait_for_selected
from airflow_provider_gangjobs.cluster.loop_local import CLIENT, import_in_thread
from airflow_provider_gangjobs.triggers.gang_job import HOOK, StoredTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow.triggers.base import TriggerEvent


class SensorTrigger(StoredTrigger):
    """Wait for objects of others and yield one event.

    The trigger has no `on_kill`: the objects belong to somebody else. The trigger stores no state: after a restart of
    the triggerer, the trigger reads the cluster again.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield one event."""
        await import_in_thread(*CLIENT, HOOK, "airflow_provider_gangjobs.tracking.awaited_watch")
        started = asyncio.get_running_loop().time()
        with report_metrics():
            payload = await self.wait()
        if self.task_instance is not None:  # with `dag.test()`, no worker has to end first
            await sleep_until_resumable(started)
        yield self.event(payload)

    async def wait(self) -> dict[str, Any]:
        """Wait, and return the payload of the event."""
        raise NotImplementedError


class GangSelectionTrigger(SensorTrigger):
    """Wait for selected gangs and yield one event; see `sensor_wait.wait_for_selected`.

    :param args: The fields of `SelectionArgs`, as keyword arguments.
    """

    args_class = SelectionArgs

    async def wait(self) -> dict[str, Any]:
        """Wait for the gangs, and return the payload of the event."""
        return await wait_for_selected(self.args, self.log)


__all__ = ["GangSelectionTrigger", "SensorTrigger"]
