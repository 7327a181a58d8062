"""Triggers: they wait for a gang in the triggerer, at the price of one subscription to a shared watch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_gangjobs.triggers.args import TriggerArgs
from airflow_provider_gangjobs.triggers.kill import kill_shielded
from airflow_provider_gangjobs.triggers.metrics import report_metrics
from airflow_provider_gangjobs.triggers.resume_delay import sleep_until_resumable
from airflow_provider_gangjobs.triggers.wait import wait_for_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider_gangjobs.tracking.follow import Until


class _GangTrigger(BaseTrigger):
    """Waits for one gang and emits one event, the payload of a `GangEvent`.

    `run` never raises and never ends without an event, except when it is cancelled. It keeps nothing: after a
    restart of the triggerer it looks at the cluster again. Its arguments are the fields of `TriggerArgs`.
    """

    until: ClassVar[Until]

    def __init__(self, **args: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.args = TriggerArgs(**args)
        self._told = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", self.args.to_kwargs()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        started = asyncio.get_running_loop().time()
        with report_metrics():
            event = await wait_for_event(self.args, self.until, self.log)
        if self.task_instance is not None:  # `dag.test()` gives none, and has no worker to wait for
            await sleep_until_resumable(started)
        self._told = True
        yield TriggerEvent(event.to_payload())  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Delete the gang, if a user killed the task and nobody else answers for it (see `kill`)."""
        if not self._told:
            await kill_shielded(self.args, self.task_instance, self.log)

    async def cleanup(self) -> None:
        # Airflow before 3.3 knows no `on_kill`: there, every exit looks the same, and only the task's state tells.
        if not hasattr(BaseTrigger, "on_kill"):
            await self.on_kill()


class GangSubmissionTrigger(_GangTrigger):
    """Waits until all ranks of a gang run, or until it is certain that they will not."""

    until = "running"


class GangCompletionTrigger(_GangTrigger):
    """Waits until a gang has ended and every rank's outcome is recorded."""

    until = "ended"


class GangJobTrigger(_GangTrigger):
    """Waits for the whole life of a gang, from its submission to its end, in one deferral."""

    until = "ended"


__all__ = ["GangCompletionTrigger", "GangJobTrigger", "GangSubmissionTrigger"]
