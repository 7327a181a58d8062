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
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from airflow_provider_gangjobs.airflow_api.task_end import RETURN_VALUE, has_xcom, is_mappable, push_xcom
from airflow_provider_gangjobs.airflow_api.task_log import is_for_users, learn_secrets, mask, mask_event
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
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.service import GangService

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
LOG_LINES_MAX: Final = 2000
"""How much of the logs of one gang a trigger copies. Airflow reads some hundred lines a second from a triggerer."""
LATE_S: Final = 20.0
"""How long after the end of its gang an end may begin before another triggerer may have begun it. Airflow gives the
triggers of a lost triggerer to another one after `[triggerer] triggerer_health_check_threshold`, by default 30 s."""
PUSHES_AT_ONCE_MAX: Final = 3
"""How many gangs of an event loop push their XComs at once. Airflow's supervisor answers in the order of the requests,
and the message with the events of all triggers is one of them: it must not wait for the XComs of a hundred gangs."""
LINES_PER_WRITE: Final = 50
"""Some milliseconds of the event loop."""
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


def ask_airflow_once(args: TriggerArgs, ti: Any) -> None:
    """Ask Airflow for the state of the task, if the process has not asked Airflow before and the task may end here.

    At the first request of a triggerer, its supervisor loads the API server of Airflow, which takes 4 CPU seconds, and
    does nothing else meanwhile. So the trigger asks when its wait begins, and not only when the gang has ended.
    """
    limits = loop_local(_Limits)
    if args.end is not None and limits.first_request is None:
        limits.first_request = asyncio.create_task(read_task_state(ti, cast("Logger", _log)), name="first request")


async def complete(args: TriggerArgs, event: GangEvent, ti: Any, log: Logger, seen: SeenEnd | None) -> bool:
    """Do what a worker does at the end of a gang, up to the success. Return false if a worker must end the task.

    The log says where the task ends, and why. Raises only when it is cancelled. Safe to repeat.

    :param ti: The task instance of the trigger.
    :param seen: What the wait has seen of the end of the gang; `None` if nothing.
    """
    if args.end is None:
        return False
    within_s = _end_within_s(args)
    try:
        if event.status is not Status.SUCCEEDED:
            raise _NeedsWorkerError("the gang has not succeeded")
        if (first := loop_local(_Limits).first_request) is not None:
            await asyncio.wait({first}, timeout=FIRST_REQUEST_S)
        async with asyncio.timeout(within_s):
            end = TriggerEnd.of(args.end)
            config = await args.hook.aconfig(max_age_s=CONNECTION_MAX_AGE_S)
            async with shared_service(config) as gangs:
                if not await learn_secrets(gangs.client, args.ref, args.secrets):
                    raise _NeedsWorkerError("the secrets of the gang are not known in the triggerer")
                await _Completion(args, end, event, ti, log, seen or SeenEnd()).run(gangs)
    except TimeoutError:
        why = f"the end was not complete within {within_s:.0f} s"
    except _NeedsWorkerError as needed:
        why = str(needed)
    except Exception as error:  # a worker meets it again, and raises it
        why = str(error) if is_for_users(error) else f"{type(error).__name__} in the triggerer"
        log.debug("The task could not be ended in the triggerer", exc_info=True)
    else:
        return True
    log.info("A worker ends the task of gang %s: %s", args.ref, mask(why))
    return False


def _end_within_s(args: TriggerArgs) -> float:
    return END_WITHIN_S if args.deadline is None else END_WITH_DEADLINE_WITHIN_S


class _Completion:
    """One end of one gang that has succeeded."""

    def __init__(
        self, args: TriggerArgs, end: TriggerEnd, event: GangEvent, ti: Any, log: Logger, seen: SeenEnd
    ) -> None:
        self._args = args
        self._end = end
        # A worker reads the event from JSON.
        self._event = mask_event(GangEvent.from_payload(mask_event(event).to_payload()))
        self._ti = ti
        self._log = log
        self._seen = seen

    async def run(self, gangs: GangService) -> None:
        """Push the XComs and copy the logs.

        Raises:
            Exception: a worker must end the task.
        """
        end, limits = self._end, loop_local(_Limits)
        is_late = self._is_late(gangs)
        outcomes, value = await self._result(gangs)
        is_mapped_over = end.pushes_xcoms and end.is_mapped_over
        if is_mapped_over and not is_mappable(value):
            raise _NeedsWorkerError("another task is mapped over its value, which has no length")
        lines: Sequence[str] = ()
        if end.logs is not Logs.NONE:
            async with limits.logs:
                lines = await self._read_logs(gangs, outcomes)
        async with limits.pushes:
            was_begun = is_late and (not end.pushes_xcoms or await has_xcom(self._ti, XCOM_END))
            if not await awaits_delivery(gangs.client, self._args.ref, self._args.claim):
                raise _NeedsWorkerError("another try is responsible for the gang, or the gang is delivered or gone")
            if end.pushes_xcoms:
                await self._push_xcoms(value, len(value) if is_mapped_over else None)
        for note in self._event.notes:
            self._log.warning("%s", note)
        if lines and was_begun:
            self._log.warning("Another triggerer may have copied these logs before, so lines appear a second time")
        await self._write(lines)
        log_use(self._event, self._log)
        self._log.info("Gang %s has succeeded. Its task ends in the triggerer, without a worker", self._args.ref)
        if not await log_channel().drain(_end_within_s(self._args)) and end.logs is not Logs.NONE:
            raise _NeedsWorkerError("Airflow may not have read all lines of its logs, which appear a second time")

    def _is_late(self, gangs: GangService) -> bool:
        """Return whether the gang has ended so long ago that another triggerer may have begun this end."""
        ended, now = self._event.times.get("ended"), gangs.client.server_clock.now()
        return ended is not None and (now - ended).total_seconds() > LATE_S

    async def _push_xcoms(self, value: Any, mapped_length: int | None) -> None:
        """Push the XComs at the same time, because each of them waits for its turn at Airflow's supervisor.

        That are two requests, or one without a value: Airflow has no request for several XComs.

        Raises:
            Exception: Airflow has not stored one of them. The requests are over.
        """
        push = partial(push_xcom, self._ti, is_dag_result=self._end.is_dag_result)
        pushes = [push(XCOM_END, self._event.to_payload())]
        if value is not None:
            pushes.append(push(RETURN_VALUE, value, mapped_length=mapped_length))
        for error in await asyncio.gather(*pushes, return_exceptions=True):
            if error is not None:
                raise error

    async def _result(self, gangs: GangService) -> tuple[Sequence[Outcome], Any]:
        """Return the outcomes, and the value of the task.

        Raises:
            GangJobError: the outcomes could not be read, or a result is too large.
            _NeedsWorkerError: an outcome is missing.
        """
        evidence, end = await collect_outcomes(gangs.client, self._event, self._seen.outcomes), self._end
        if not evidence.is_complete or evidence.held:
            raise _NeedsWorkerError("not every outcome of its ranks is recorded")
        if end.results is Results.NONE:
            return evidence.outcomes, None
        limits = {"limit": end.results_limit, "folder": end.result_folder}
        return evidence.outcomes, value_of(self._event, evidence, end.results, **limits)

    async def _read_logs(self, gangs: GangService, outcomes: Sequence[Outcome]) -> Sequence[str]:
        """Return the lines of the logs that were not streamed.

        Raises:
            _NeedsWorkerError: it is too much for a trigger.
        """
        lines: list[str] = []
        left = LOG_BYTES_MAX

        def keep(more: Sequence[str]) -> None:
            nonlocal left
            lines.extend(more)
            left -= sum(map(len, more))
            if left < 0 or len(lines) > LOG_LINES_MAX:
                raise _NeedsWorkerError("its logs are too long for a triggerer")

        log = TaskLog(keep, mask, self._event.streamed, self._event.whole_logs)
        ref, options = self._args.ref, self._end.log_options
        await copy_logs(gangs.client, ref, options, log, outcomes=outcomes, pods=self._seen.pods)
        return lines

    async def _write(self, lines: Sequence[str]) -> None:
        channel = log_channel()
        for at in range(0, len(lines), LINES_PER_WRITE):
            await channel.wait_until_free()
            for line in lines[at : at + LINES_PER_WRITE]:
                self._log.info("%s", line)


def deliver_when_accepted(args: TriggerArgs, event: GangEvent, ti: Any) -> None:
    """Begin to ask Airflow whether it has noted the success of the task, and deliver the gang when it has.

    To be called before the event of the success. The delivery outlives the trigger, which Airflow ends soon.
    """
    run_in_background(_deliver_when_accepted(args, event, ti), name=f"delivery of {args.name}")


async def _deliver_when_accepted(args: TriggerArgs, event: GangEvent, ti: Any) -> None:
    loop, delay_s = asyncio.get_running_loop(), ASK_AFTER_S
    ended = time.time()
    until = loop.time() + ASK_FOR_S
    while loop.time() < until:
        await asyncio.sleep(delay_s + -(loop.time() + delay_s) % ASK_AFTER_S)
        delay_s = min(2 * delay_s, ASK_CAP_S)
        state = await read_task_state(ti, cast("Logger", _log))
        if is_success(state):
            async with loop_local(_Limits).deliveries:
                is_first = await _deliver(args, event)
            if is_first:
                await asyncio.to_thread(_send_metrics, args, event, ti, ended)
            return
        if state not in ("deferred", UNKNOWN):
            _log.info("Gang %s is kept, because its task is %s and not success", args.ref, state)
            return
    _log.warning("Gang %s is not delivered, because Airflow has not noted the success of its task", args.ref)


async def _deliver(args: TriggerArgs, event: GangEvent) -> bool:
    """Delete the gang, or mark it as delivered, as its task wants. A fault is logged, and a sweep goes on.

    Return false if another process has done that, such as a triggerer that had the trigger while this one was stopped.
    """
    assert args.end is not None, "the trigger has ended its task"
    version = event.job_version if event.claim == args.claim else ""
    try:
        config = await args.hook.aconfig(max_age_s=CONNECTION_MAX_AGE_S)
        async with shared_service(config) as gangs:
            deletes = TriggerEnd.of(args.end).deletes
            return await deliver(gangs.client, args.ref, args.claim, deletes=deletes, version=version)
    except Exception as error:  # a secrets backend may raise anything
        why = str(error) if is_for_users(error) else type(error).__name__
        _log.warning("Gang %s could not be delivered, which is left to a sweep: %s", args.ref, why)
        _log.debug("The delivery has failed", exc_info=True)
        return True


def _send_metrics(args: TriggerArgs, event: GangEvent, ti: Any, ended: float) -> None:
    """Send the metrics of the success, which the process that delivers the gang sends once.

    :param ended: When the trigger has ended the task, in Unix time.
    """
    assert args.end is not None, "the trigger has ended its task"
    end = TriggerEnd.of(args.end)
    submitted = event.times.get("submitted")
    began = end.started or (None if submitted is None else submitted.timestamp())
    send_success(ti, operator=end.operator, team=end.team, seconds=None if began is None else ended - began)
    send_use(event, ti.dag_id, ti.task_id)
