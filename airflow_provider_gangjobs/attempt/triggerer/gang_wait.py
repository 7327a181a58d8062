"""Waits for a gang, logs its progress, and returns an event whatever happens.

The triggers use this module, and so does the operator when it waits in the worker. Only a cancellation is raised: if a
trigger raises, or ends without an event, Airflow fails the task without a reason.

A gang may be healthy while this process cannot follow it, so faults of this process are retried:

1. Reading the connection is retried with back-off for `CONNECTION_READ_FOR_S`. Airflow reports every fault of a
   secrets backend as "not found".
2. After the API server has refused requests for some time, the connection is read again, and a changed connection (a
   rotated token) is used.
3. After an unexpected exception the gang is followed again, at most `RESTARTS_MAX` times in a row.

When the retries are exhausted, the event has the status `error`, which says nothing about the gang. The deadline of the
task applies all the time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from msgspec import convert
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.error_log import log_failure
from airflow_provider_gangjobs.attempt.deferral import EXECUTION_TIMEOUT
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import FINISH_S, SUMMARY_S, LogStreaming
from airflow_provider_gangjobs.attempt.triggerer.metrics import count_diagnosis, forget_progress, note_progress
from airflow_provider_gangjobs.attempt.triggerer.phase_callbacks import PhaseCallbacks
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status, build_event, history_of, with_history
from airflow_provider_gangjobs.gang.outcome.time_use import TimeUse
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.deadlines import missing_limit
from airflow_provider_gangjobs.gang.state.diagnosis import UNEVENTFUL
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.service.gangs import follow
from airflow_provider_gangjobs.service.session import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.cluster.clock import ServerClock
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorLine
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.follow import FollowUntil


CONNECTION_READ_FOR_S: Final = 300.0
"""How long the reading of the connection is retried: longer than a restart of a secrets backend takes."""
CONNECTION_MAX_AGE_S: Final = 10.0
"""The triggers of a triggerer that begin within so many seconds share one read of the connection."""
CLOCK_WITHIN_S: Final = 30.0
"""The first observation of the gang brings the time of the API server. A trigger waits at least this long for the first
observation before the trigger applies the deadline of the task by the local clock."""
RESTARTS_MAX: Final = 5
"""How often in a row a gang is followed again after an unexpected exception. All restarts take about two minutes."""
RESTART_BASE_S: Final = 1.0
RESTART_CAP_S: Final = 60.0
PROGRESS_S: Final = 900.0
"""After the gang was followed for this long since its first observation, earlier errors are no longer counted."""
HALT_WITHIN_S: Final = 30.0
HARVEST_WITHIN_S: Final = 60.0
"""The default grace period of a pod is 30 s."""
FINISH_AFTER_TIMEOUT_S: Final = 10.0
"""`FINISH_S` after the `execution_timeout` of the task. The three together are shorter than
`attempt.deferral.BACKSTOP_S`, after which Airflow itself ends the deferral."""
ERROR_PAUSE_BASE_S: Final = 30.0
"""The pause of a deferral that follows one error. Each further error in a row doubles the pause."""
ERROR_PAUSE_CAP_S: Final = 600.0


async def wait_for_event(
    args: TriggerArgs,
    until: FollowUntil,
    log: Logger,
    *,
    config: ClusterConfig | None = None,
    limit_s: float | None = None,
    loop_ends: bool = False,
) -> GangEvent:
    """Wait until the gang runs or has ended, and return the event. The function raises only when it is cancelled.

    :param args: The gang and its timeouts. The event carries the counts of `args` back to the operator.
    :param until: `running` or `ended`.
    :param config: The cluster, if the connection was already read.
    :param limit_s: How long to wait at most, in seconds. The default is to wait until `args.deadline`.
    :param loop_ends: The event loop ends with the wait, and with it the calls of callbacks, so they get some seconds.
    """
    wait = _GangWait(args, until, log, config)
    event = await wait.run_with_logs(limit_s)
    if loop_ends and event.status is not Status.TIMEOUT:  # there is no time left after a timeout
        await wait.callbacks.finish()
    attempt = args.attempt if event.attempt is None else event.attempt
    errors = 0 if wait.has_progressed else args.tracking_errors
    return replace(event, attempt=attempt, disruptions=args.disruptions, tracking_errors=errors)


def wait_for_event_in_worker(
    args: TriggerArgs, log: Logger, *, config: ClusterConfig, limit_s: float | None, until: FollowUntil = "ended"
) -> GangEvent:
    """Block until the gang runs or has ended, on a new event loop, and return the event. See `wait_for_event`."""
    return run(_wait_on_own_loop(args, log, config, limit_s, until))


async def _wait_on_own_loop(
    args: TriggerArgs, log: Logger, config: ClusterConfig, limit_s: float | None, until: FollowUntil
) -> GangEvent:
    from airflow_provider_gangjobs.cluster.informer import informers

    try:
        return await wait_for_event(args, until, log, config=config, limit_s=limit_s, loop_ends=True)
    finally:
        await informers().aclose()  # informers stay open for further gangs, but this loop ends here


@asynccontextmanager
async def shared_service(config: ClusterConfig) -> AsyncIterator[GangService]:
    """Use the client that all triggers of this loop share for a cluster."""
    from airflow_provider_gangjobs.cluster.informer import informers
    from airflow_provider_gangjobs.service import GangService

    async with informers().client(config) as client:
        yield GangService(client)


def pause_after_errors_s(errors: int) -> float:
    """Return how long to wait before a gang is followed again, in seconds.

    :param errors: How many deferrals in a row ended in an error.
    """
    return min(ERROR_PAUSE_BASE_S * 2.0 ** (errors - 1), ERROR_PAUSE_CAP_S) if errors else 0.0


class _GangWait:
    """One wait for one gang."""

    def __init__(self, args: TriggerArgs, until: FollowUntil, log: Logger, config: ClusterConfig | None) -> None:
        self._args = args
        self._until = until
        self._log = log
        self._config = config
        self._last: Observation | None = None
        """The last observation that was reported."""
        self._streaming = LogStreaming(args, log, self._handle_line)
        self.callbacks = PhaseCallbacks(args, log)
        self._pause_s = pause_after_errors_s(args.tracking_errors)
        self._timeout: asyncio.Timeout | None = None
        self._clock: ServerClock | None = None
        self._first_seen_at: float | None = None
        self._is_unlimited = False
        """The log says that the gang waits without a limit."""

    @property
    def has_progressed(self) -> bool:
        """Whether the gang was followed for at least `PROGRESS_S` since its first observation."""
        return self._first_seen_at is not None and _monotonic() - self._first_seen_at >= PROGRESS_S

    async def run_with_logs(self, limit_s: float | None) -> GangEvent:
        """Run, and stream logs meanwhile. The event says how far logs were streamed."""
        began, streaming = _monotonic(), self._streaming

        def at_most_s(seconds: float) -> float:
            return seconds if limit_s is None else min(seconds, max(limit_s - (_monotonic() - began), 0.0))

        try:
            event = await self.run(limit_s)
            await streaming.finish(at_most_s(FINISH_AFTER_TIMEOUT_S if event.reason == EXECUTION_TIMEOUT else FINISH_S))
            if event.status is not Status.RUNNING:
                await streaming.read_summary(at_most_s(SUMMARY_S))
        except BaseException:
            await streaming.stop(save=True)
            forget_progress(self._args.uid)
            raise
        await streaming.stop(save=False, has_run=bool(event.ranks))
        forget_progress(self._args.uid)
        event = replace(event, streamed=streaming.positions, whole_logs=streaming.whole_logs)
        earlier = convert(self._args.earlier_use, TimeUse) if self._args.earlier_use else None
        report = None if streaming.supervisor_lines is None else streaming.supervisor_lines.report
        return with_history(event, report, streaming.restarts_max, earlier)

    def _handle_line(self, line: SupervisorLine) -> None:
        """Pass on a line of a supervisor, to callbacks and metrics."""
        lines = self._streaming.supervisor_lines
        if lines is None or line.event not in ("restart", "restarted", "progress"):
            return
        report = lines.report
        self.callbacks.report_progress(line, report)
        if self._streaming.task is not None and report.progress is not None and report.progress.percent is not None:
            note_progress(self._args.uid, self._streaming.task, report.progress.percent)

    async def run(self, limit_s: float | None) -> GangEvent:
        """Return the event of the gang, or the event of the timeout."""
        is_fixed = limit_s is not None or self._args.deadline is None
        at_least_s = CLOCK_WITHIN_S
        while True:
            try:
                async with asyncio.timeout(limit_s if is_fixed else max(self._remaining_s(), at_least_s)) as timeout:
                    self._timeout = None if is_fixed else timeout
                    return await self._follow_with_retries()
            except TimeoutError:
                if is_fixed:  # the worker ends the gang itself
                    return timeout_event(self._args, self._last)
                if self._remaining_s() <= 0:
                    await self._learn_clock()
                if self._remaining_s() <= 0:
                    return await self._end_in_time()
                # The local clock was ahead of the clock of the API server, which is known now.
                at_least_s = 0.0

    async def _learn_clock(self) -> None:
        """Ask the API server for its time if it is not known, because the local clock may be ahead. Never raises."""
        if self._clock is not None:
            return
        try:
            async with asyncio.timeout(HALT_WITHIN_S):
                async with shared_service(await self._read_config()) as gangs:
                    await gangs.is_live(self._args.ref)
                    clock = gangs.client.server_clock
                    self._clock = clock if clock.is_known else None
        except Exception as error:
            self._log.warning("The time of the API server is not known: %s", type(error).__name__)

    async def _end_in_time(self) -> GangEvent:
        """Halt the gang, because the `execution_timeout` of the task has passed. Return the event of the timeout.

        The worker that gets the event would also end the gang. But a worker may be free only after hours.
        """
        event = timeout_event(self._args, self._last)
        harvested = None
        if self._clock is None:  # nothing is halted by the local clock alone
            return event
        try:
            async with asyncio.timeout(HALT_WITHIN_S):
                config = await self._read_config()
                async with shared_service(config) as gangs:
                    if not await gangs.halt_live(self._args.ref, self._args.claim, reason=EXECUTION_TIMEOUT):
                        return event
            self._log.info("Gang %s is halted: the execution_timeout of its task has passed", self._args.ref)
            async with asyncio.timeout(HARVEST_WITHIN_S):
                harvested = await follow(config, self._args.ref, logs=self._streaming)
        except Exception as error:
            self._log.warning("Gang %s was not ended completely in the triggerer: %s", self._args.ref, error)
        if harvested is None or harvested.status is Status.ERROR:
            held = max(self._last.counts.created, 1) if self._last else 1
            return replace(event, counts={**event.counts, "held": held})
        return replace(event, **{name: getattr(harvested, name) for name in _KEPT_AFTER_HALT})

    async def _read_config(self) -> ClusterConfig:
        return self._config or await self._args.hook.aconfig(max_age_s=CONNECTION_MAX_AGE_S)

    def _remaining_s(self) -> float:
        """Return the time until the deadline, by the clock of the API server or, until it is known, the local clock."""
        assert self._args.deadline is not None, "the caller has checked that there is a deadline"
        now_s = self._clock.now().timestamp() if self._clock else time.time()
        return max(0.0, self._args.deadline - now_s)

    async def _follow_with_retries(self) -> GangEvent:
        """Follow the gang, and retry after faults of this process as the docstring of the module describes."""
        pause_s, self._pause_s = self._pause_s, 0.0
        await asyncio.sleep(pause_s)
        backoff = Backoff(Clock(), base_s=RESTART_BASE_S, cap_s=RESTART_CAP_S)
        failures = 0
        while True:
            began = _monotonic()
            try:
                if self._config is None:
                    self._config = await self._args.hook.aconfig(
                        retry_for_s=CONNECTION_READ_FOR_S, max_age_s=CONNECTION_MAX_AGE_S
                    )
            except Exception as error:  # a secrets backend may raise anything
                return self._error_event("The connection could not be read", error)
            self._streaming.config = self._config
            try:
                event = await follow(
                    self._config,
                    self._args.ref,
                    until=self._until,
                    deadlines=self._args.deadlines,
                    report=self._report,
                    logs=self._streaming,
                )
            except Exception as error:  # a defect of this provider or of a library
                if _monotonic() - began >= PROGRESS_S:
                    failures = 0
                    backoff.reset()
                failures += 1
                if failures > RESTARTS_MAX:
                    return self._error_event("Waiting for the gang failed", error)
                self._log.exception("Waiting for gang %s failed; the wait is restarted", self._args.ref)
            else:
                if event.status is not Status.ERROR or not await self._reload_connection():
                    return event
            await asyncio.sleep(backoff.next())

    def _report(self, observation: Observation) -> None:
        """Log the observation. The first one also moves the timeout to the deadline by the API server's clock."""
        category = observation.diagnosis.category
        count_diagnosis(category)
        self._log.info("%s%s", observation.line, "" if category in UNEVENTFUL else f" [{category}]")
        self._last = observation
        self.callbacks.report(observation)
        missing = None if self._args.deadline else missing_limit(observation, self._args.deadlines)
        if missing is not None and not self._is_unlimited:
            self._is_unlimited = True
            self._log.info("The task waits without a limit: it has neither %s nor execution_timeout", missing)
        if self._args.stream_ranks and (observation.phase is Phase.RUNNING or observation.counts.running):
            self._streaming.start()
        if self._first_seen_at is None:
            self._first_seen_at = _monotonic()
        if self._timeout is not None and self._clock is None and not self._timeout.expired():
            from airflow_provider_gangjobs.cluster.informer import informers

            clock = informers().server_clock(self._config.key) if self._config else None
            self._clock = clock if clock is not None and clock.is_known else None
            self._timeout.reschedule(_monotonic() + self._remaining_s())

    async def _reload_connection(self) -> bool:
        try:
            config = await self._args.hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S)
        except Exception as error:  # a secrets backend may raise anything
            self._log.warning("The connection could not be read again: %s", type(error).__name__)
            return False
        has_changed = self._config is None or config.key != self._config.key
        if has_changed:
            self._log.info("The connection has changed; the new one is used for gang %s", self._args.ref)
        self._config = config
        return has_changed

    def _error_event(self, what: str, error: Exception) -> GangEvent:
        log_failure(self._log, error, f"{what}. Gang {self._args.ref} cannot be followed in this process")
        # The messages of other libraries may contain credentials, so they go to the log and not into the event.
        message = str(error) if isinstance(error, GangJobError) else f"{what}. The trigger's log has the details"
        phase = self._last.phase if self._last else Phase.SUBMITTED
        return build_event(
            self._args.ref,
            Status.ERROR,
            phase,
            category=Category.UNKNOWN,
            reason=type(error).__name__,
            message=message,
        )


_KEPT_AFTER_HALT: Final = ("counts", "ranks", "notes", "times", "queue", "placement", "requests")
"""The fields of the event after a halt that say how the gang was, and not why its task ends."""


def timeout_event(args: TriggerArgs, last: Observation | None = None) -> GangEvent:
    """Return the event of a task whose `execution_timeout` has passed.

    :param last: The last observation of the gang, if there was one.
    """
    category = last.diagnosis.category if last else Category.UNKNOWN
    return build_event(
        args.ref,
        Status.TIMEOUT,
        last.phase if last else Phase.SUBMITTED,
        category=Category.DEADLINE_EXCEEDED if category in UNEVENTFUL else category,
        reason=EXECUTION_TIMEOUT,
        message=last.line if last else "",
        remedy="Raise execution_timeout of the task.",
        since=last.since if last else None,
        seconds=args.execution_timeout_s,
        counts=last.counts if last else None,
        **history_of(None, last.began if last else {}, ended=None),
    )


def _monotonic() -> float:
    return asyncio.get_running_loop().time()
