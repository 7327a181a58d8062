"""The trigger of JobSetSensor: waits for the end of a JobSet that belongs to somebody else."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_gangjobs.airflow_api.masking import mask_event
from airflow_provider_gangjobs.airflow_api.task_state import with_task_instance
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import sleep_until_resumable
from airflow_provider_gangjobs.attempt.triggerer.metrics import report_metrics
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import JobSetArgs, wait_for_job_set
from airflow_provider_gangjobs.cluster.loop_local import CLIENT, import_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class JobSetTrigger(BaseTrigger):
    """Wait for the end of a JobSet and yield one event.

    The trigger has no `on_kill`: the JobSet belongs to somebody else. The trigger stores no state: after a restart of
    the triggerer, the trigger reads the cluster again.

    :param args: The fields of `JobSetArgs`, as keyword arguments.
    """

    def __init__(self, **args: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.args = JobSetArgs(**args)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow creates this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", asdict(self.args)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the JobSet, and yield one event."""
        await import_in_thread(*CLIENT, "airflow_provider_gangjobs.tracking.watch.awaited")
        started = asyncio.get_running_loop().time()
        with report_metrics():
            event = await wait_for_job_set(self.args, self.log)
        if self.task_instance is not None:  # with `dag.test()`, no worker has to end first
            await sleep_until_resumable(started)
        yield TriggerEvent(with_task_instance(mask_event(event).to_payload(), self.task_instance))  # type: ignore[no-untyped-call]


__all__ = ["JobSetTrigger"]
