"""The trigger of a sensor, which waits for gangs that belong to somebody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.attempt.metrics import report_metrics
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import sleep_until_resumable
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import SelectionArgs, wait_for_selected
from airflow_provider_gangjobs.cluster.loop_local import CLIENT, import_in_thread
from airflow_provider_gangjobs.triggers.gang_job import StoredTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow.triggers.base import TriggerEvent


class GangSelectionTrigger(StoredTrigger):
    """Wait for selected gangs and yield one event; see `sensor_wait.wait_for_selected`.

    The trigger has no `on_kill`: the gangs belong to somebody else. The trigger stores no state: after a restart of the
    triggerer, the trigger reads the cluster again.

    :param args: The fields of `SelectionArgs`, as keyword arguments.
    """

    args_class = SelectionArgs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the gangs, and yield one event."""
        await import_in_thread(*CLIENT, "airflow_provider_gangjobs.tracking.gang_watch")
        started = asyncio.get_running_loop().time()
        with report_metrics():
            payload = await wait_for_selected(self.args, self.log)
        if self.task_instance is not None:  # with `dag.test()`, no worker has to end first
            await sleep_until_resumable(started)
        yield self.event(payload)


__all__ = ["GangSelectionTrigger"]
