"""Wait for a gang until there is something to tell, and tell it as an event, whatever happens.

Used by the triggers, and by the operator when it waits in the worker. Only cancellation escapes:
a trigger that raises, or ends without an event, fails its task without a word of why.

The gang is healthy while it cannot be followed, so faults on this side are met with patience:

1. Reading the connection is repeated with back-off for `CONNECTION_READ_FOR_S`. Airflow reports every fault of a
   secrets backend as "not found".
2. After a refusal that lasts, the connection is read again, and a changed one (a rotated token) is used.
3. After an unexpected exception the following begins anew, `RESTARTS_MAX` times in a row.

Only then is it an event of status `error`, which says nothing about the gang. The task's deadline applies all the time.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status, build_event
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.hooks.event_loop import run
from airflow_provider_gangjobs.triggers.phase_log import PhaseLog

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.server_clock import ServerClock
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.tracking.follow import Until
    from airflow_provider_gangjobs.triggers.args import TriggerArgs

EXECUTION_TIMEOUT = "Deadline.execution"
"""Reason of the event when the task's own `execution_timeout` has passed."""
CONNECTION_READ_FOR_S: Final = 300.0
"""How long the reading of the connection is repeated: longer than a restart of a secrets backend."""
CLOCK_WITHIN_S: Final = 30.0
"""A trigger waits at least so long for the first sight of the gang, and with it for the API server's time, before the
task's deadline has passed by the local clock alone."""
RESTARTS_MAX: Final = 5
"""How often in a row the following begins anew after an unexpected exception; about two minutes."""
RESTART_BASE_S: Final = 1.0
RESTART_CAP_S: Final = 60.0
PROGRESS_S: Final = 900.0
"""A gang that was followed for so long since it was first seen was followed well: earlier errors count no more."""
ERROR_PAUSE_BASE_S: Final = 30.0
ERROR_PAUSE_CAP_S: Final = 600.0
"""How long a deferral that follows an error waits first: the base, doubled for each further error in a row."""


async def wait_for_event(
    args: TriggerArgs, until: Until, log: Logger, *, config: ClusterConfig | None = None, limit_s: float | None = None
) -> GangEvent:
    """The event that the gang runs, or has ended, or that this cannot be found out; with what the watch knows.

    :param config: The cluster, if the connection was read already.
    :param limit_s: How long to wait at most, in seconds; by default until the deadline of `watch`.
    """
    waiting = _Waiting(args, until, log, config)
    event = await waiting.event(limit_s)
    attempt = args.attempt if event.attempt is None else event.attempt
    errors = 0 if waiting.has_progressed else args.tracking_errors
    return replace(event, attempt=attempt, disruptions=args.disruptions, tracking_errors=errors)


def wait_for_event_in_worker(
    args: TriggerArgs, log: Logger, *, config: ClusterConfig, limit_s: float | None
) -> GangEvent:
    """The event of the gang's end, waited for here, on a loop of its own."""
    return run(_on_own_loop(args, log, config, limit_s))


async def _on_own_loop(args: TriggerArgs, log: Logger, config: ClusterConfig, limit_s: float | None) -> GangEvent:
    from airflow_provider_gangjobs.cluster.informer import informers

    try:
        return await wait_for_event(args, "ended", log, config=config, limit_s=limit_s)
    finally:
        await informers().aclose()  # they would linger for gangs to come, but this loop ends


def pause_after_errors_s(errors: int) -> float:
    """How long to wait before a gang is followed again, after so many errors in a row."""
    return min(ERROR_PAUSE_BASE_S * 2.0 ** (errors - 1), ERROR_PAUSE_CAP_S) if errors else 0.0


class _Waiting:
    """One wait for one gang."""

    def __init__(self, args: TriggerArgs, until: Until, log: Logger, config: ClusterConfig | None) -> None:
        self._args = args
        self._until = until
        self._log = log
        self._config = config
        self._hook = args.hook
        self._phases = PhaseLog(log)
        self._pause_s = pause_after_errors_s(args.tracking_errors)
        self._limit: asyncio.Timeout | None = None
        self._clock: ServerClock | None = None
        self._first_seen_at: float | None = None

    @property
    def has_progressed(self) -> bool:
        """Whether the gang was followed for some time since it was first seen."""
        return self._first_seen_at is not None and _monotonic() - self._first_seen_at >= PROGRESS_S

    async def event(self, limit_s: float | None) -> GangEvent:
        fixed = limit_s is not None or self._args.deadline is None
        at_least_s = CLOCK_WITHIN_S
        while True:
            try:
                async with asyncio.timeout(limit_s if fixed else max(self._remaining_s(), at_least_s)) as limit:
                    self._limit = None if fixed else limit
                    return await self._persist()
            except TimeoutError:
                if fixed or self._remaining_s() <= 0:
                    return timed_out(self._args, self._phases.last)
                # The local clock was ahead, which the API server's answers have shown since.
                at_least_s = 0.0

    def _remaining_s(self) -> float:
        """Until the watch's deadline: by the API server's clock, or by the local one until that is known."""
        assert self._args.deadline is not None, "asked for only where there is one"
        now_s = self._clock.now().timestamp() if self._clock else time.time()
        return max(0.0, self._args.deadline - now_s)

    async def _persist(self) -> GangEvent:
        """Follow the gang, whatever goes wrong on this side, as the module says."""
        pause_s, self._pause_s = self._pause_s, 0.0
        await asyncio.sleep(pause_s)
        backoff = Backoff(Clock(), base_s=RESTART_BASE_S, cap_s=RESTART_CAP_S)
        failures = 0
        while True:
            began = _monotonic()
            try:
                if self._config is None:
                    self._config = await self._hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S)
            except Exception as error:  # whatever a secrets backend raises
                return self._unknown("The connection could not be read", error)
            try:
                event = await self._follow(self._config)
            except Exception as error:  # a defect, here or in a library
                if _monotonic() - began >= PROGRESS_S:
                    failures = 0
                    backoff.reset()
                failures += 1
                if failures > RESTARTS_MAX:
                    return self._unknown("Waiting failed", error)
                self._log.exception("Waiting for gang %s failed and begins anew", self._args.ref)
            else:
                if event.status is not Status.ERROR or not await self._has_new_connection():
                    return event
            await asyncio.sleep(backoff.next())

    async def _follow(self, config: ClusterConfig) -> GangEvent:
        args = self._args
        return await self._hook.afollow(
            args.ref, until=self._until, deadlines=args.deadlines, report=self._report, config=config
        )

    def _report(self, observation: Observation) -> None:
        self._phases(observation)
        if self._first_seen_at is None:
            self._first_seen_at = _monotonic()
        if self._limit is not None and self._clock is None and not self._limit.expired():
            self._clock = self._server_clock()
            self._limit.reschedule(_monotonic() + self._remaining_s())

    def _server_clock(self) -> ServerClock | None:
        from airflow_provider_gangjobs.cluster.informer import informers

        clock = informers().server_clock(self._config.key) if self._config else None
        return clock if clock is not None and clock.is_known else None

    async def _has_new_connection(self) -> bool:
        """Read the connection again after a refusal; whether it has changed since."""
        try:
            config = await self._hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S)
        except Exception as error:  # whatever a secrets backend raises
            self._log.warning("The connection could not be read again: %s", type(error).__name__)
            return False
        changed = self._config is None or config.key != self._config.key
        if changed:
            self._log.info("The connection has changed; gang %s is followed by the new one", self._args.ref)
        self._config = config
        return changed

    def _unknown(self, what: str, error: Exception) -> GangEvent:
        self._log.error("%s, so gang %s cannot be followed here", what, self._args.ref, exc_info=error)
        # Other libraries' messages may hold anything, credentials included; the log is where they belong.
        said = str(error) if isinstance(error, GangJobError) else f"{what}. The trigger's log has the details"
        phase = self._phases.last.phase if self._phases.last else Phase.SUBMITTED
        return build_event(self._args.ref, Status.ERROR, phase, reason=type(error).__name__, message=said)


def timed_out(args: TriggerArgs, last: Observation | None = None) -> GangEvent:
    """The event that the task's `execution_timeout` has passed, with what was seen last of the gang."""
    return build_event(
        args.ref,
        Status.TIMEOUT,
        last.phase if last else Phase.SUBMITTED,
        reason=EXECUTION_TIMEOUT,
        message=last.line if last else "",
        remedy="Raise execution_timeout of the task.",
        since=last.since if last else None,
        seconds=args.execution_timeout_s,
        counts=last.counts if last else None,
    )


def _monotonic() -> float:
    return asyncio.get_running_loop().time()
