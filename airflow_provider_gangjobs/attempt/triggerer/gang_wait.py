"""Waits for a gang, logs its progress, calls the `callbacks` of its task, and returns an event whatever happens.

The triggers use this module, and so does the operator when it waits in the worker. Only a cancellation is raised: if a
trigger raises, or ends without an event, Airflow fails the task without a reason.

A gang may be healthy while this process cannot follow it, so faults of this process are retried:

1. Reading the connection is retried with back-off for `CONNECTION_READ_FOR_S`. Airflow reports every fault of a
   secrets backend as "not found". A connection that is really missing here is left to the worker at once.
2. After the API server has refused requests for some time, the connection is read again, and a changed connection (a
   rotated token) is used.
3. After an unexpected exception the gang is followed again, at most `RESTARTS_MAX` times in a row.

When the retries are exhausted, the event has the status `error`, which says nothing about the gang. The deadline of the
task applies all the time.

Nothing that a callback does reaches the wait for the gang. Each call runs in a thread of its own, which ends with the
process (`daemon`), and the calls for one gang run one after the other. A call that takes longer than `CALL_S` cannot be
ended, so this gang then has no further calls. A callback with `STUCK_CALLS_MAX` such calls has no further calls in the
whole process, because each of them keeps a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import convert, to_builtins
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.task_log import is_for_users, learn_secrets, log_failure, mask, mask_event
from airflow_provider_gangjobs.attempt.metrics import count_diagnosis, forget_progress, note_progress
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import FINISH_S, SUMMARY_S, LogStreaming
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.loop_local import loop_local, run_in_background
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, build_event, history_of, with_history
from airflow_provider_gangjobs.gang.outcome.restarts import TimeUse
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import missing_limit
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.reason import UNEVENTFUL
from airflow_provider_gangjobs.gang.state.stopped import BY_EXECUTION_TIMEOUT, EXECUTION_TIMEOUT
from airflow_provider_gangjobs.hooks.gang_job import with_pendulum_times
from airflow_provider_gangjobs.jobs.gang_secrets import hide
from airflow_provider_gangjobs.parameters.checks import load_callback
from airflow_provider_gangjobs.service.gangs import follow, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.cluster.clock import ServerClock
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorLine, SupervisorReport
    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.follow import FollowUntil
    from airflow_provider_gangjobs.tracking.harvest.collect import SeenEnd


CALL_S: Final = 60.0
LAST_CALLS_S: Final = 5.0
"""How long a worker waits at the end of the wait for the calls that are left. A triggerer does not wait."""
CALLS_AT_ONCE: Final = 16
"""How many calls run at once in one process."""
WAITING_CALLS_MAX: Final = 100
"""How many calls for one gang wait at most, before further progress is left out."""
STUCK_CALLS_MAX: Final = 3
"""With how many stuck calls a callback is switched off. Together with the calls that run at once, one callback keeps at
most 18 threads. One stuck call may be the fault of one gang or of one connection; three are a fault of the callback."""

log = logging.getLogger(__name__)


class StuckCalls:
    """The calls of this process that did not end in time, and the callbacks that are switched off because of them."""

    def __init__(self) -> None:
        self._threads: dict[str, list[threading.Thread]] = {}
        self._off: set[str] = set()

    def is_off(self, path: str) -> bool:
        """Return whether the callback has no further calls in this process."""
        return path in self._off

    def add(self, path: str, thread: threading.Thread) -> None:
        """Note a call that did not end in time. Switch the callback off if too many of its calls still run."""
        running = [each for each in (*self._threads.get(path, ()), thread) if each.is_alive()]
        self._threads[path] = running
        if len(running) < STUCK_CALLS_MAX or path in self._off:
            return
        self._off.add(path)
        log.warning(
            "Callback %s is switched off in this process: %d of its calls do not end, and each keeps a thread. Correct"
            " the callback, for example by a timeout for its requests, and restart the process",
            path,
            len(running),
        )


stuck_calls: Final = StuckCalls()


def _slots() -> asyncio.Semaphore:
    return asyncio.Semaphore(CALLS_AT_ONCE)


class PhaseCallbacks:
    """The callbacks of one wait."""

    def __init__(self, args: TriggerArgs, log: Logger) -> None:
        self._args = args
        self._log = log
        self.mask: Callable[[str], str] = mask
        self._phase: Phase | None = None
        self._is_stuck = False
        self._skipped: set[str] = set()
        self._changes: deque[tuple[str, dict[str, Any]]] = deque()
        """The methods that are to be called, and their arguments."""
        self._task: asyncio.Task[None] | None = None

    def report(self, state: GangState) -> None:
        """Call the callbacks soon, if the phase has changed."""
        if not self._args.callbacks or self._is_stuck or state.phase is self._phase:
            return
        previous, self._phase = self._phase, state.phase
        self._add(
            "on_phase_change",
            phase=str(state.phase),
            previous=None if previous is None else str(previous),
            message=self.mask(state.line),
            since=state.since,
            category=str(state.reason.category),
        )

    def report_progress(self, line: SupervisorLine, report: SupervisorReport) -> None:
        """Call the callbacks that want to know of progress and of restarts in place soon."""
        if self._args.callbacks and not self._is_stuck and len(self._changes) < WAITING_CALLS_MAX:
            progress = None if report.progress is None else to_builtins(report.progress)
            change = {"event": line.event, "message": self.mask(line.message), "progress": progress}
            self._add("on_progress", **change, restarts=report.total)

    def _add(self, method: str, **arguments: Any) -> None:
        self._changes.append((method, {"gang": self._args.ref, "task": dict(self._args.task or {}), **arguments}))
        if self._task is None or self._task.done():
            self._task = run_in_background(self._call_all(), name=f"callbacks of {self._args.name}")

    async def finish(self) -> None:
        """Wait for the calls that are left, but not for long, because the loop of this process ends next."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=LAST_CALLS_S)

    async def _call_all(self) -> None:
        while self._changes:
            method, change = self._changes.popleft()
            for path in self._args.callbacks:
                async with loop_local(_slots):
                    if stuck_calls.is_off(path):
                        self._skip(path)
                        continue
                    error = await _run_in_thread(partial(_call, path, method, change), path=path)
                if isinstance(error, _StillRunningError):
                    self._log.warning("Callback %s takes longer than %.0f s and is not called again", path, CALL_S)
                    self._is_stuck = True
                    self._changes.clear()
                    return
                if error is not None:
                    what = change.get("phase", method)
                    self._log.warning("Callback %s failed in phase %s", path, what, exc_info=error)

    def _skip(self, path: str) -> None:
        if path not in self._skipped:
            self._skipped.add(path)
            self._log.warning("Callback %s is not called, because too many of its calls do not end", path)


class _StillRunningError(Exception):
    """A call takes longer than `CALL_S`."""


def _call(path: str, method: str, change: dict[str, Any]) -> None:
    function = getattr(load_callback(path), method, None)
    if function is None:  # only `on_phase_change` must exist
        return
    returned = function(**with_pendulum_times(change))
    if inspect.iscoroutine(returned):
        asyncio.run(returned)


async def _run_in_thread(call: Callable[[], None], *, path: str) -> BaseException | None:
    """Run a call of a callback in a daemon thread, wait for at most `CALL_S`, and return its error.

    The threads of an executor are joined at the exit of the process, so a callback that hangs would keep a worker.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            call()
        except BaseException as raised:  # a callback may raise anything, SystemExit too
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, error)

    thread = threading.Thread(target=run, name=f"callback {path}", daemon=True)
    thread.start()
    done, _ = await asyncio.wait([ended], timeout=CALL_S)
    if done:
        return ended.result()
    stuck_calls.add(path, thread)
    return _StillRunningError()


CONNECTION_READ_FOR_S: Final = 300.0
"""How long the reading of the connection is retried: longer than a restart of a secrets backend takes."""
CONNECTION_MAX_AGE_S: Final = 30.0
"""The triggers of a triggerer that begin within so many seconds share one read of the connection. A read may be three
requests to Airflow's supervisor, which answers three to ten a second: for the connection, and to mask its secrets."""
CLOCK_WITHIN_S: Final = 30.0
"""The first look at the gang brings the time of the API server. A trigger waits at least this long for the first
look before the trigger applies the deadline of the task by the local clock."""
RESTARTS_MAX: Final = 5
"""How often in a row a gang is followed again after an unexpected exception. All restarts take about two minutes."""
RESTART_BASE_S: Final = 1.0
RESTART_CAP_S: Final = 60.0
PROGRESS_S: Final = 900.0
"""After the gang was followed for this long since the first look, earlier errors are no longer counted."""
STOP_WITHIN_S: Final = 30.0
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
    on_end: Callable[[SeenEnd], None] = lambda seen: None,
) -> GangEvent:
    """Wait until the gang runs or has ended, and return the event. The function raises only when it is cancelled.

    :param args: The gang and its timeouts. The event carries the counts of `args` back to the operator.
    :param until: `running` or `ended`.
    :param config: The cluster, if the connection was already read.
    :param limit_s: How long to wait at most, in seconds. The default is to wait until `args.deadline`.
    :param loop_ends: The event loop ends with the wait, and with it the calls of callbacks, so they get some seconds.
    :param on_end: Called with what was seen of the end of a gang that has ended by itself.
    """
    wait = _GangWait(args, until, log, config, on_end)
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

    def __init__(
        self,
        args: TriggerArgs,
        until: FollowUntil,
        log: Logger,
        config: ClusterConfig | None,
        on_end: Callable[[SeenEnd], None] = lambda seen: None,
    ) -> None:
        self._args = args
        self._until = until
        self._log = log
        self._config = config
        self._on_end = on_end
        self._last: GangState | None = None
        """The last state that was reported."""
        self._knows_secrets = args.secrets is False
        """Whether the masker of this process knows the secrets of the gang."""
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
        """Whether the gang was followed for at least `PROGRESS_S` since the first look."""
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
        if not self._knows_secrets and event.status is not Status.ERROR:
            event = mask_event(event, hide)
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
            async with asyncio.timeout(STOP_WITHIN_S):
                async with shared_service(await self._read_config()) as gangs:
                    await gangs.is_live(self._args.ref)
                    clock = gangs.client.server_clock
                    self._clock = clock if clock.is_known else None
        except Exception as error:
            self._log.warning("The time of the API server is not known: %s", type(error).__name__)

    async def _end_in_time(self) -> GangEvent:
        """Stop the gang, because the `execution_timeout` of the task has passed. Return the event of the timeout.

        The worker that gets the event would also end the gang. But a worker may be free only after hours.
        """
        from airflow_provider_gangjobs.ending.delete import is_live_gang_of
        from airflow_provider_gangjobs.ending.stop import stop
        from airflow_provider_gangjobs.jobs.requests import RetryingRequests

        event = timeout_event(self._args, self._last)
        harvested = None
        if self._clock is None:  # nothing is stopped by the local clock alone
            return event
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                config = await self._read_config()
                async with shared_service(config) as gangs:
                    requests = RetryingRequests(gangs.client, self._args.namespace)
                    is_own = is_live_gang_of(self._args.claim)
                    if not await stop(requests, self._args.ref, BY_EXECUTION_TIMEOUT, only_if=is_own):
                        return event
            self._log.info("Gang %s is stopped: the execution_timeout of its task has passed", self._args.ref)
            async with asyncio.timeout(HARVEST_WITHIN_S):
                harvested = await follow(config, self._args.ref, logs=self._streaming)
        except Exception as error:
            self._log.warning("Gang %s was not ended completely in the triggerer: %s", self._args.ref, error)
        if harvested is None or harvested.status is Status.ERROR:
            held = max(self._last.counts.created, 1) if self._last else 1
            return replace(event, counts={**event.counts, "held": held})
        return replace(event, **{name: getattr(harvested, name) for name in _KEPT_AFTER_STOP})

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
            await self._learn_secrets(self._config)
            try:
                event = await follow(
                    self._config,
                    self._args.ref,
                    until=self._until,
                    deadlines=self._args.deadlines,
                    report=self._report,
                    logs=self._streaming,
                    on_end=self._on_end,
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

    async def _learn_secrets(self, config: ClusterConfig) -> None:
        """Learn the secrets of the gang before any of its texts is shown. An API server that is away is waited for."""
        backoff = Backoff(Clock(), base_s=RESTART_BASE_S, cap_s=RESTART_CAP_S)
        while not self._knows_secrets:
            try:
                async with shared_service(config) as gangs:
                    self._knows_secrets = await learn_secrets(gangs.client, self._args.ref, self._args.secrets)
                break
            except ClusterError as error:
                await asyncio.sleep(backoff.next(at_least_s=error.retry_after_s))
        if not self._knows_secrets:
            self._log.warning("The secrets of gang %s are not known here: its texts are not shown", self._args.ref)
        self.callbacks.mask = mask if self._knows_secrets else hide
        self._streaming.is_allowed = self._knows_secrets

    def _report(self, state: GangState) -> None:
        """Log the state. The first one also moves the timeout to the deadline by the API server's clock."""
        category = state.reason.category
        count_diagnosis(category)
        line = self.callbacks.mask(state.line)
        self._log.info("%s%s", line, "" if category in UNEVENTFUL else f" [{category}]")
        self._last = state
        self.callbacks.report(state)
        missing = None if self._args.deadline else missing_limit(state, self._args.deadlines)
        if missing is not None and not self._is_unlimited:
            self._is_unlimited = True
            self._log.info("The task waits without a limit: it has neither %s nor execution_timeout", missing)
        if self._args.stream_ranks and (state.phase is Phase.RUNNING or state.counts.running):
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
        message = str(error) if is_for_users(error) else f"{what}. The trigger's log has the details"
        phase = self._last.phase if self._last else Phase.SUBMITTED
        return build_event(
            self._args.ref,
            Status.ERROR,
            phase,
            category=Category.UNKNOWN,
            reason=type(error).__name__,
            message=message,
        )


_KEPT_AFTER_STOP: Final = ("counts", "ranks", "notes", "times", "queue", "placement", "requests")
"""The fields of the event after a stop that say how the gang was, and not why its task ends."""


def timeout_event(args: TriggerArgs, last: GangState | None = None) -> GangEvent:
    """Return the event of a task whose `execution_timeout` has passed.

    :param last: The last state of the gang, if there was one.
    """
    category = last.reason.category if last else Category.UNKNOWN
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
