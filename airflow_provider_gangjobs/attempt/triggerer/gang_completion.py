"""Ends the task of a gang that has succeeded in the triggerer, as a worker would: logs, XComs, success, delivery.

    if await complete(args, event, ti, log, seen):
        deliver_when_accepted(args, event, ti)
        yield success_event()

The process may die at each point. Until Airflow has noted the success, the trigger runs again in another triggerer and
does everything again: it reads the same outcomes and pushes the same XComs. Whatever is not as it should be is left to
a worker, which raises the error that belongs to it. So an end in the triggerer changes no result.

Airflow tells a trigger nothing about its event: the event may be lost, or be refused because a user has marked the
task. So the delivery asks Airflow for the state of the task. If the process dies before that, a sweep delivers the gang
(`ending.sweep`). The trigger may also be one that Airflow has given to another triggerer, while this process was
stopped. So directly before the XComs it reads the Job: another try, or the delivery, has left its mark there.

The metrics of the success are sent by the process that has delivered the gang, of which there is one. If it ends within
seconds of the success, nobody sends them.

The logs of many gangs must delay no event. A trigger holds at most `LOG_BYTES_MAX` of the logs of its gang, and writes
nothing before it has read all of them and has pushed the XComs. A gang with more is left to a worker. If the process
dies between the logs and the event, the next one finds the XComs, and says that the lines appear a second time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from airflow_provider_gangjobs.airflow_api.task_end import RETURN_VALUE, has_xcom, is_mappable, push_xcom
from airflow_provider_gangjobs.airflow_api.task_log import is_for_users, join_lines, learn_secrets, mask, mask_event
from airflow_provider_gangjobs.airflow_api.task_state import UNKNOWN, is_success, read_task_state
from airflow_provider_gangjobs.attempt.completion import value_of
from airflow_provider_gangjobs.attempt.deferral import XCOM_END, TriggerEnd
from airflow_provider_gangjobs.attempt.metrics import log_use, send_success, send_use
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import CONNECTION_MAX_AGE_S, shared_service
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import log_channel
from airflow_provider_gangjobs.cluster.loop_local import loop_local, run_in_background
from airflow_provider_gangjobs.ending.deliver import awaits_delivery, deliver
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.spec import Logs, Results
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.tracking.harvest.collect import SeenEnd, collect_outcomes
from airflow_provider_gangjobs.tracking.logs.copy import TaskLog, copy_logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome

FIRST_REQUEST_S: Final = 30.0
"""How long an end waits for the first answer of Airflow to this process; see `ask_airflow_once`."""
END_WITHIN_S: Final = 600.0
"""How long an end in the triggerer may take. The supervisor of a triggerer answers some ten requests a second, so the
ends of thousands of gangs wait for each other, as they would for workers."""
END_WITH_DEADLINE_WITHIN_S: Final = 30.0
"""The same for a task with an `execution_timeout`. Together with `FIRST_REQUEST_S` and the times of the wait
(`FINISH_AFTER_TIMEOUT_S` and the grace period of a pod) it is shorter than `attempt.deferral.BACKSTOP_S`, after which
Airflow itself ends the deferral."""
LOGS_AT_ONCE_MAX: Final = 8
"""How many gangs of an event loop copy their logs at once."""
LOG_BYTES_MAX: Final = 256 * 1024
"""How much of the logs of one gang a trigger copies. Airflow reads 20 to 200 KiB a second from a triggerer."""
LATE_S: Final = 20.0
"""How long after the end of its gang an end may begin before another triggerer may have begun it while this one was
stopped. Airflow gives the triggers of a triggerer that is silent to another one after `[triggerer]
triggerer_health_check_threshold`, by default 30 s. It does so at once with those of a triggerer that is stopped."""
STOPPED_S: Final = 20.0
"""After a pause of so long in the middle of an end, another triggerer may have done the end meanwhile; see `LATE_S`."""
PUSHES_AT_ONCE_MAX: Final = 3
"""How many gangs of an event loop push their XComs at once. Airflow's supervisor answers in the order of the requests,
and the message with the events of all triggers is one of them: it must not wait for the XComs of a hundred gangs."""
ASK_AFTER_S: Final = 2.0
"""When Airflow is asked first whether it has noted the success, at the earliest. It notes an event within about a
second. Each further question waits twice as long as the one before. The gangs of a triggerer ask at the same moments,
which are multiples of this time, so that Airflow answers them with one request."""
ASK_CAP_S: Final = 60.0
ASK_FOR_S: Final = 900.0
"""After so long a sweep asks in place of this process."""
DELIVERIES_AT_ONCE_MAX: Final = 16

_log = logging.getLogger(__name__)


class _NeedsWorkerError(Exception):
    """A worker must end the task, for the reason that the text gives."""


class _Limits:
    """What the ends of one event loop share."""

    def __init__(self) -> None:
        self.logs = asyncio.Semaphore(LOGS_AT_ONCE_MAX)
        self.pushes = asyncio.Semaphore(PUSHES_AT_ONCE_MAX)
        self.deliveries = asyncio.Semaphore(DELIVERIES_AT_ONCE_MAX)
        self.first_request: asyncio.Task[str] | None = None
        self._ran_at = self._resumed_at = -math.inf

    def now(self) -> float:
        """Return the time by the clock of the running loop, and note that this process runs."""
        now = asyncio.get_running_loop().time()
        if now - self._ran_at > STOPPED_S:
            self._resumed_at = now
        self._ran_at = now
        return now

    def was_stopped(self, since: float) -> bool:
        """Return whether this process may have been stopped so long that Airflow gave its triggers to another one.

        :param since: An earlier result of `now`.
        """
        self.now()
        return self._resumed_at > since

    async def first_answer(self) -> None:
        """Wait for the first answer of Airflow. A supervisor that is silent for long counts as one that was stopped."""
        since = self.now()
        if self.first_request is not None:
            await asyncio.wait({self.first_request}, timeout=FIRST_REQUEST_S)
        if self.now() - since > STOPPED_S:
            self._resumed_at = self._ran_at


def ask_airflow_once(args: TriggerArgs, ti: Any) -> None:
    """Ask Airflow for the state of the task, if the process has not asked Airflow before and the task may end here.

    At the first request of a triggerer, its supervisor loads the API server of Airflow, which takes 4 CPU seconds, and
    does nothing else meanwhile. So the trigger asks when its wait begins, and not only when the gang has ended.
    """
    limits = loop_local(_Limits)
    if args.end is not None and limits.first_request is None:
        limits.first_request = asyncio.create_task(read_task_state(ti, cast("Logger", _log)), name="first request")


async def complete(
    args: TriggerArgs, event: GangEvent, ti: Any, log: Logger, seen: SeenEnd | None, *, began: float
) -> bool:
    """Do what a worker does at the end of a gang, up to the success. Return false if a worker must end the task.

    The log says where the task ends, and why. Raises only when it is cancelled. Safe to repeat.

    :param ti: The task instance of the trigger.
    :param seen: What the wait has seen of the end of the gang; `None` if nothing.
    :param began: When the trigger began, by the clock of the running loop.
    """
    if args.end is None:
        return False
    limits, within_s = loop_local(_Limits), END_WITHIN_S if args.deadline is None else END_WITH_DEADLINE_WITHIN_S
    limit = asyncio.timeout(within_s)
    completion = _Completion(args, ti, log, seen or SeenEnd(), began, limits.now())
    try:
        if event.status is not Status.SUCCEEDED:
            raise _NeedsWorkerError("the gang has not succeeded")
        await limits.first_answer()
        async with limit:
            await completion.run(event, TriggerEnd.of(args.end))
    except _NeedsWorkerError as needed:
        why = str(needed)
    except Exception as error:  # a worker meets it again, and raises it
        why = str(error) if is_for_users(error) else f"{type(error).__name__} in the triggerer"
        if isinstance(error, TimeoutError) and limit.expired():
            why = f"the end was not complete within {within_s:.0f} s"
        log.debug("The task could not be ended in the triggerer", exc_info=True)
    else:
        return True
    log.info("A worker ends the task of gang %s: %s", args.ref, mask(why))
    if completion.has_copied_logs:
        log.warning("The worker copies the logs again, so lines appear a second time")
    return False


@dataclass
class _Completion:
    """One end of one gang that has succeeded."""

    args: TriggerArgs
    ti: Any
    log: Logger
    seen: SeenEnd
    began: float
    end_began: float
    has_copied_logs: bool = field(default=False, init=False)
    """The log of the task has lines of the ranks that a worker would copy again."""

    async def run(self, event: GangEvent, end: TriggerEnd) -> None:
        """Push the XComs and copy the logs.

        Raises:
            Exception: a worker must end the task.
        """
        config = await self.args.hook.aconfig(max_age_s=CONNECTION_MAX_AGE_S)
        async with shared_service(config) as gangs:
            if not await learn_secrets(gangs.client, self.args.ref, self.args.secrets):
                raise _NeedsWorkerError("the secrets of the gang are not known in the triggerer")
            # A worker reads the event from JSON.
            event = mask_event(GangEvent.from_payload(mask_event(event).to_payload()))
            lines = await self._push_results(gangs.client, event, end)
        for note in event.notes:
            self.log.warning("%s", note)
        self.has_copied_logs = bool(lines)
        await self._write(lines)
        log_use(event, self.log)
        self.log.info("Gang %s has succeeded. Its task ends in the triggerer, without a worker", self.args.ref)
        if not await log_channel().drain(END_WITHIN_S) and end.logs is not Logs.NONE:
            raise _NeedsWorkerError("Airflow may not have read all lines of its logs")

    async def _push_results(self, client: Client, event: GangEvent, end: TriggerEnd) -> Sequence[str]:
        """Push the XComs, and return the lines of the logs that were not streamed."""
        limits, may_be_begun = loop_local(_Limits), self._may_be_begun(client, event)
        evidence = await collect_outcomes(client, event, self.seen.outcomes)
        if not evidence.is_complete or evidence.held:
            raise _NeedsWorkerError("not every outcome of its ranks is recorded")
        value = None
        if end.results is not Results.NONE:
            value = value_of(event, evidence, end.results, limit=end.results_limit, folder=end.result_folder)
        if end.is_mapped_over and not (end.pushes_xcoms and is_mappable(value)):
            raise _NeedsWorkerError("another task is mapped over its value, which has no length")
        lines: Sequence[str] = ()
        if end.logs is not Logs.NONE:
            async with limits.logs:
                lines = await self._read_logs(client, event, end, evidence.outcomes)
        async with limits.pushes:
            may_be_begun |= limits.was_stopped(self.end_began)
            since = limits.now()
            was_begun = bool(lines) and may_be_begun and (not end.pushes_xcoms or await has_xcom(self.ti, XCOM_END))
            if not await awaits_delivery(client, self.args.ref, self.args.claim):
                raise _NeedsWorkerError("another try is responsible for the gang, or the gang is delivered or gone")
            if end.pushes_xcoms:
                await self._push_xcoms(event, value, end)
        if was_begun or (lines and limits.was_stopped(since)):
            self.log.warning("Another triggerer may have copied these logs before, so lines appear a second time")
        return lines

    def _may_be_begun(self, client: Client, event: GangEvent) -> bool:
        """Return whether another triggerer may have begun this end: before this trigger, or while it was stopped.

        Each end begins when all outcomes are recorded. So no other triggerer has begun it if this trigger, which was
        not stopped since, recorded the first one.
        """
        ended, running_s = event.times.get("ended"), asyncio.get_running_loop().time() - self.began
        if not self.seen.is_first_recorder:
            return True
        if running_s < LATE_S:
            return False
        return ended is None or (client.server_clock.now() - ended).total_seconds() > LATE_S

    async def _push_xcoms(self, event: GangEvent, value: Any, end: TriggerEnd) -> None:
        """Push the XComs at the same time, because each of them waits for its turn at Airflow's supervisor.

        That are two requests, or one without a value: Airflow has no request for several XComs.

        Raises:
            Exception: Airflow has not stored one of them. The requests are over.
        """
        push = partial(push_xcom, self.ti, is_dag_result=end.is_dag_result)
        pushes = [push(XCOM_END, event.to_payload())]
        if value is not None:
            pushes.append(push(RETURN_VALUE, value, mapped_length=len(value) if end.is_mapped_over else None))
        for error in await asyncio.gather(*pushes, return_exceptions=True):
            if error is not None:
                raise error

    async def _read_logs(
        self, client: Client, event: GangEvent, end: TriggerEnd, outcomes: Sequence[Outcome]
    ) -> Sequence[str]:
        """Return the lines of the logs that were not streamed.

        Raises:
            _NeedsWorkerError: it is too much for a trigger.
        """
        lines: list[str] = []
        left = LOG_BYTES_MAX

        def keep(more: Sequence[str]) -> None:
            nonlocal left
            lines.extend(more)
            left -= sum(len(line.encode(errors="replace")) for line in more)
            if left < 0:
                raise _NeedsWorkerError("its logs are too long for a triggerer")

        log = TaskLog(keep, mask, event.streamed, event.whole_logs)
        await copy_logs(client, self.args.ref, end.log_options, log, outcomes=outcomes, pods=self.seen.pods)
        return lines

    async def _write(self, lines: Sequence[str]) -> None:
        channel = log_channel()
        for message in join_lines(lines):
            await channel.wait_until_free()
            self.log.info("%s", message)


def deliver_when_accepted(args: TriggerArgs, event: GangEvent, ti: Any) -> None:
    """Begin to ask Airflow whether it has noted the success of the task, and deliver the gang when it has.

    To be called before the event of the success. The delivery outlives the trigger, which Airflow ends soon.
    """
    run_in_background(_deliver_when_accepted(args, event, ti), name=f"delivery of {args.name}")


async def _deliver_when_accepted(args: TriggerArgs, event: GangEvent, ti: Any) -> None:
    loop, delay_s = asyncio.get_running_loop(), ASK_AFTER_S
    end, ended = TriggerEnd.of(args.end or {}), time.time()
    until = loop.time() + ASK_FOR_S
    while loop.time() < until:
        await asyncio.sleep(delay_s + -(loop.time() + delay_s) % ASK_AFTER_S)
        delay_s = min(2 * delay_s, ASK_CAP_S)
        state = await read_task_state(ti, cast("Logger", _log))
        if is_success(state):
            async with loop_local(_Limits).deliveries:
                is_first = await _deliver(args, event, deletes=end.deletes)
            if is_first:
                await asyncio.to_thread(_send_metrics, end, event, ti, ended)
            return
        if state not in ("deferred", UNKNOWN):
            _log.info("Gang %s is kept, because its task is %s and not success", args.ref, state)
            return
    _log.warning("Gang %s is not delivered, because Airflow has not noted the success of its task", args.ref)


async def _deliver(args: TriggerArgs, event: GangEvent, *, deletes: bool) -> bool:
    """Delete the gang, or mark it as delivered, as its task wants. A fault is logged, and a sweep goes on.

    Return false if another process has done that, such as a triggerer that had the trigger while this one was stopped.
    """
    try:
        config = await args.hook.aconfig(max_age_s=CONNECTION_MAX_AGE_S)
        async with shared_service(config) as gangs:
            version = event.version_with(args.claim)
            return await deliver(gangs.client, args.ref, args.claim, deletes=deletes, version=version)
    except Exception as error:  # a secrets backend may raise anything
        why = str(error) if is_for_users(error) else type(error).__name__
        _log.warning("Gang %s could not be delivered, which is left to a sweep: %s", args.ref, why)
        _log.debug("The delivery has failed", exc_info=True)
        return True


def _send_metrics(end: TriggerEnd, event: GangEvent, ti: Any, ended: float) -> None:
    """Send the metrics of the success, which the process that delivers the gang sends once.

    :param ended: When the trigger has ended the task, in Unix time.
    """
    submitted = event.times.get("submitted")
    began = end.started or (None if submitted is None else submitted.timestamp())
    send_success(ti, operator=end.operator, team=end.team, seconds=None if began is None else ended - began)
    send_use(event, ti.dag_id, ti.task_id)
