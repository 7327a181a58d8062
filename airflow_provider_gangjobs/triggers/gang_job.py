"""Triggers that wait for a gang in the triggerer. All triggers of a loop share the watches of a namespace.

A worker creates a trigger only to store it, so this module does not import what a trigger needs to run.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_gangjobs.airflow_api.task_end import success_event
from airflow_provider_gangjobs.airflow_api.task_log import mask, mask_event
from airflow_provider_gangjobs.airflow_api.task_state import start_in_worker_event, with_task_instance
from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.cluster.loop_local import CLIENT, import_in_thread
from airflow_provider_gangjobs.kube.text import to_printable_value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from airflow_provider_gangjobs.attempt.triggerer.gang_start import GangStart
    from airflow_provider_gangjobs.tracking.follow import FollowUntil
    from airflow_provider_gangjobs.tracking.harvest.collect import SeenEnd

_TRIGGERER: Final = "airflow_provider_gangjobs.attempt.triggerer"
NEEDED_TO_RUN: Final = (f"{_TRIGGERER}.gang_completion", f"{_TRIGGERER}.endings")
"""These modules, and what they import."""
NEEDED_TO_AWAIT_PODS: Final = (
    f"{_TRIGGERER}.previous_attempt_wait",
    "airflow_provider_gangjobs.cluster.informer",
    "airflow_provider_gangjobs.ending.release",
)
NEEDED_TO_START: Final = (
    f"{_TRIGGERER}.gang_start",
    "airflow_provider_gangjobs.ending.sweep",
    "airflow_provider_gangjobs.submission.submit",
    "airflow_provider_gangjobs.tracking.follow",
)


class StoredTrigger(BaseTrigger):
    """A trigger whose arguments Airflow stores.

    :param args: The fields of `args_class`, as keyword arguments.
    """

    args_class: ClassVar[type[Any]] = TriggerArgs

    def __init__(self, **args: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.args: Any = self.args_class(**args)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow creates this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self.args.to_kwargs()

    def event(self, payload: dict[str, Any]) -> TriggerEvent:
        """Return the event, which names the try that is to get it.

        A triggerer ends, and the next one as well, with an event that the database refuses. So all events pass here.
        """
        return TriggerEvent(to_printable_value(with_task_instance(payload, self.task_instance)))  # type: ignore[no-untyped-call]


class _GangTrigger(StoredTrigger):
    """Wait for one gang and yield one event: the payload of a `GangEvent`, or the success of the task (`args.end`).

    `run` never raises and never ends without an event, except when `run` is cancelled. The trigger stores no state:
    after a restart of the triggerer, the trigger reads the cluster again.

    :param args: The fields of `TriggerArgs`, as keyword arguments.
    """

    until: ClassVar[FollowUntil]
    _has_yielded = False
    _seen_end: SeenEnd | None = None
    """What the wait has seen of the end of a gang that has ended by itself."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the gang, and yield its event."""
        await import_in_thread(*CLIENT, *NEEDED_TO_RUN)
        from airflow_provider_gangjobs.attempt.metrics import report_metrics
        from airflow_provider_gangjobs.attempt.triggerer.endings import following
        from airflow_provider_gangjobs.attempt.triggerer.gang_completion import (
            ask_airflow_once,
            complete,
            deliver_when_accepted,
        )
        from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event
        from airflow_provider_gangjobs.attempt.triggerer.log_streaming import sleep_until_resumable, without_streamed

        started = asyncio.get_running_loop().time()
        # `dag.test()` sets no task instance. It has no supervisor that could be asked for the states of tasks.
        is_in_triggerer = self.task_instance is not None
        sweeping = following(self.args) if is_in_triggerer else nullcontext()
        with report_metrics(), sweeping:
            if is_in_triggerer:
                ask_airflow_once(self.args, self.task_instance)
            on_end, loop_ends = self._note_end, not is_in_triggerer
            event = await wait_for_event(self.args, self.until, self.log, loop_ends=loop_ends, on_end=on_end)
            ends_here = is_in_triggerer and await complete(
                self.args, event, self.task_instance, self.log, self._seen_end, began=started
            )
        if ends_here:
            self._has_yielded = True
            deliver_when_accepted(self.args, event, self.task_instance)
            yield success_event()
            return
        # With `dag.test()`, no worker has to end first.
        if is_in_triggerer and not await sleep_until_resumable(started):
            event = without_streamed(event, self.log)
        self._has_yielded = True
        yield self.event(mask_event(event).to_payload())

    def _note_end(self, seen: SeenEnd) -> None:
        self._seen_end = seen

    async def on_kill(self) -> None:
        """Delete the gang if a user killed the task and no other process is responsible for the gang; see `kill`."""
        from airflow_provider_gangjobs.attempt.triggerer.endings import kill, run_shielded

        if not self._has_yielded:
            await run_shielded(kill(self.args, self.task_instance, self.log))

    async def cleanup(self) -> None:
        """Call `on_kill` on Airflow before 3.3, which has no `on_kill`.

        There, Airflow calls `cleanup` whenever a trigger ends, and `on_kill` finds out from the state of the task
        whether the task was killed.
        """
        if not hasattr(BaseTrigger, "on_kill"):
            await self.on_kill()


class GangSubmissionTrigger(_GangTrigger):
    """Wait until all ranks of a gang run, or until it is certain that they will not run.

    :param args: The fields of `TriggerArgs`, as keyword arguments.
    """

    until = "running"


class GangJobTrigger(_GangTrigger):
    """Wait until a gang has ended and the outcome of every rank is recorded.

    :param args: The fields of `TriggerArgs`, as keyword arguments.
    """

    until = "ended"


class GangCompletionTrigger(GangJobTrigger):
    """Wait as `GangJobTrigger` does. The name is for tasks that wait with `GangSubmissionTrigger` first.

    :param args: The fields of `TriggerArgs`, as keyword arguments.
    """


class GangStartTrigger(_GangTrigger):
    """Start the gang of a task that Airflow's scheduler has deferred, and then wait for it as the task says.

    If only a worker can start the gang, the event says so, and the worker executes the task.

    :param start: The operator and its parameters; see `parameters.triggerer_start`.
    """

    until = "ended"
    timeout_after: datetime | None = None
    """When Airflow ends the deferral. A triggerer sets it."""

    def __init__(self, *, start: str) -> None:
        BaseTrigger.__init__(self)  # type: ignore[no-untyped-call]
        self._start_text = start
        self._context: Any = None
        self._start: GangStart | None = None
        self._is_started = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow creates this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"start": self._start_text}

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Keep the context. `run` renders the parameters, in a thread, and an error fails the task in a worker."""
        self._context = context

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Start the gang, wait for it, and yield one event."""
        await import_in_thread(*CLIENT, *NEEDED_TO_RUN, *NEEDED_TO_START)
        from airflow_provider_gangjobs.attempt.triggerer.gang_start import GangStart
        from airflow_provider_gangjobs.gang.outcome.event import build_event
        from airflow_provider_gangjobs.gang.state.phase import Phase, Status
        from airflow_provider_gangjobs.parameters.triggerer_start import NeedsWorkerError

        try:
            if self._context is None:
                raise NeedsWorkerError("Airflow has not given the DAG to the trigger")
            self._start = GangStart(
                start=json.loads(self._start_text),
                ti=self.task_instance,
                context=self._context,
                timeout_after=self.timeout_after,
                log=self.log,
            )
            started = await self._start.result()
        except NeedsWorkerError as error:
            why = mask(str(error))
            self.log.info("A worker starts the gang: %s", why)
            yield self._last_event(start_in_worker_event(why))
            return
        self.args, self._is_started = started.args, True
        if started.until is None:
            yield self._last_event(build_event(self.args.ref, Status.RUNNING, Phase.SUBMITTED).to_payload())
            return
        self.until = started.until  # type: ignore[assignment, misc]
        async for event in super().run():
            yield event

    def _last_event(self, payload: dict[str, Any]) -> TriggerEvent:
        self._has_yielded = True
        return self.event(payload)

    async def on_kill(self) -> None:
        """Delete the gang, or what was begun of it, if a user killed the task."""
        from airflow_provider_gangjobs.attempt.triggerer.endings import run_shielded

        if self._is_started or self._has_yielded:
            await super().on_kill()
        elif self._start is not None:
            await run_shielded(self._start.kill())

    async def cleanup(self) -> None:
        """End a start that is not complete, unless a kill does that."""
        if self._start is not None:
            self._start.abandon()


class PreviousGangTrigger(_GangTrigger):
    """Wait until the pods of an earlier attempt have ended. Then the task submits its next attempt.

    :param args: The fields of `TriggerArgs` for the earlier attempt, as keyword arguments.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the pods, and yield one event."""
        await import_in_thread(*CLIENT, *NEEDED_TO_AWAIT_PODS)
        from airflow_provider_gangjobs.attempt.triggerer.previous_attempt_wait import wait_for_previous_pods

        yield self.event(await wait_for_previous_pods(self.args, self.log))

    async def on_kill(self) -> None:
        """Do nothing: the earlier attempt is over, and the next one does not exist."""


__all__ = [
    "GangCompletionTrigger",
    "GangJobTrigger",
    "GangStartTrigger",
    "GangSubmissionTrigger",
    "PreviousGangTrigger",
]
