"""Waits in the triggerer until the pods of an earlier attempt have ended, before another attempt is submitted.

Airflow runs the submission again after the event, and the submission looks for itself. So the event only says why the
wait is over, and a fault of this process does no harm.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_gangjobs.airflow_api.task_log import log_failure
from airflow_provider_gangjobs.attempt.deferral import limit_of_previous
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CLOCK_WITHIN_S,
    CONNECTION_MAX_AGE_S,
    CONNECTION_READ_FOR_S,
    shared_service,
)
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.gang.state.phase import Status

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.cluster.clock import ServerClock

PAUSE_BASE_S: Final = 2.0
PAUSE_CAP_S: Final = 30.0
"""Two requests for each look. Most grace periods are half a minute long."""
LAST_COUNT_S: Final = 5.0
"""How long the pods are counted once more after a time limit has passed."""
REPEAT_LOG_S: Final = 600.0


async def wait_for_previous_pods(args: TriggerArgs, log: Logger) -> dict[str, Any]:
    """Wait until no pod of the gang runs, and return the payload of an event.

    Its status is `succeeded`; `timeout` if a time limit of the task has passed; or `error` if this process cannot look
    for the pods.

    The wait ends at the deadline of the task, or after `limit_of_previous`. The function raises only when it is
    cancelled.

    :param args: The earlier attempt, and the time limits of the task.
    """
    began = _monotonic()
    wait = _PreviousWait(args, log)
    try:
        reason = await wait.run()
        end = Status.TIMEOUT if reason else Status.SUCCEEDED
    except Exception as error:  # a secrets backend may raise anything
        log_failure(log, error, f"The pods of gang {args.ref} cannot be looked for in this process")
        end, reason = Status.ERROR, type(error).__name__
    return {
        "v": 1,
        "status": str(end),
        "reason": reason,
        "gang": str(args.ref),
        "pods": wait.pods,
        "waited_s": round(_monotonic() - began, 1),
    }


def _monotonic() -> float:
    return asyncio.get_running_loop().time()


class _Remaining(NamedTuple):
    """The time limit that passes first."""

    seconds: float | None
    """How long it takes until the limit has passed; `None` if there is no limit."""
    limited_by: str
    """Name of the parameter that sets the limit."""


class _PreviousWait:
    def __init__(self, args: TriggerArgs, log: Logger) -> None:
        self._args = args
        self._log = log
        self._logged: tuple[int, float] = (0, 0.0)
        self._began = _monotonic()
        self._clock: ServerClock | None = None
        self.pods: int | None = None
        """How many pods of the gang had not ended when they were last counted; `None` if they were never counted."""

    def _remaining(self) -> _Remaining:
        """Return the time limit that passes first.

        The deadline of the task is a time of the API server. Until that is known, the local clock counts, which may be
        ahead, so the wait then lasts at least `CLOCK_WITHIN_S`.
        """
        limits = []
        if self._args.deadline is not None:
            now_s = self._clock.now().timestamp() if self._clock else time.time()
            at_least_s = 0.0 if self._clock else CLOCK_WITHIN_S
            limits.append(_Remaining(max(self._args.deadline - now_s, at_least_s), "execution_timeout"))
        limited_by, limit_s = limit_of_previous(self._args.time_limits or {})
        if limit_s is not None:
            left_s = limit_s - (_monotonic() - self._began)
            limits.append(_Remaining(max(left_s, 0.0), limited_by))
        return min(limits, default=_Remaining(None, ""))

    async def run(self) -> str:
        """Count the pods until none is left. Return the parameter whose time limit has passed; empty if none has.

        Raises:
            Exception: the pods cannot be counted.
        """
        backoff = Backoff(Clock(), base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)
        passed = ""
        while True:
            left = self._remaining()
            try:
                async with asyncio.timeout(LAST_COUNT_S if passed else left.seconds) as timeout:
                    pods = await self._count()
            except TimeoutError:
                if timeout.expired():
                    return passed or left.limited_by
                raise  # a secrets backend has raised it
            if not pods:
                break
            self._report(pods)
            if passed:
                return passed
            pause_s, left = backoff.next(), self._remaining()
            if left.seconds is not None and left.seconds <= pause_s:
                pause_s, passed = left.seconds, left.limited_by  # the pods may end in this pause
            await asyncio.sleep(pause_s)
        self.pods = 0
        self._log.info("The pods of gang %s, the previous attempt, have ended", self._args.ref)
        return ""

    async def _count(self) -> int:
        from airflow_provider_gangjobs.ending.release import count_running
        from airflow_provider_gangjobs.jobs.requests import retry_until_answered

        config = await self._args.hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S, max_age_s=CONNECTION_MAX_AGE_S)
        async with shared_service(config) as gangs:
            pods = await retry_until_answered(
                lambda: count_running(gangs.client, self._args.ref), clock=gangs.client.clock
            )
            self._clock = gangs.client.server_clock if gangs.client.server_clock.is_known else None
        return pods

    def _report(self, pods: int) -> None:
        now = _monotonic()
        self.pods = pods
        if pods != self._logged[0] or now - self._logged[1] >= REPEAT_LOG_S:
            self._logged = (pods, now)
            message = "The next attempt waits for the pods of gang %s, the previous attempt: %d have not ended"
            self._log.info(message, self._args.ref, pods)
