"""The trigger of JobSetSensor: waits for the end of a JobSet that belongs to somebody else."""

from __future__ import annotations

from typing import Any

from airflow_provider_gangjobs.airflow_api.task_log import mask_event
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import wait_for_job_set
from airflow_provider_gangjobs.triggers.sensor import SensorTrigger


class JobSetTrigger(SensorTrigger):
    """Wait for the end of a JobSet and yield one event.

    :param uid: UID of the JobSet; empty if it did not exist when the wait began.
    :param args: Other fields of `TriggerArgs`, as keyword arguments.
    """

    def __init__(self, *, uid: str = "", **args: Any) -> None:
        super().__init__(uid=uid, **args)

    async def wait(self) -> dict[str, Any]:
        """Wait for the JobSet, and return the payload of the event."""
        return mask_event(await wait_for_job_set(self.args, self.log)).to_payload()


__all__ = ["JobSetTrigger"]
