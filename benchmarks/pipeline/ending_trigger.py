"""A trigger that ends its task after some seconds, with one XCom, as that of a gang without a result does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_gangjobs.airflow_api.task_end import push_xcom
from benchmarks.pipeline.sizes import PODS_RUN_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class EndingTrigger(BaseTrigger):
    """Waits as long as the pods of the other variants run."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the trigger as Airflow stores it."""
        return f"{__name__}.{type(self).__name__}", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """End the task."""
        await asyncio.sleep(PODS_RUN_S)
        await push_xcom(self.task_instance, "end", {"status": "succeeded"})
        yield TaskSuccessEvent()
