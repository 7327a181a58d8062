"""Calls the `callbacks` of a task when the phase of its gang changes.

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
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from airflow_provider_gangjobs.airflow_api.masking import mask
from airflow_provider_gangjobs.airflow_api.times import with_pendulum_times
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.parameters.checks import load_callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorLine, SupervisorReport
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.gang.state.phase import Phase

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
        self._lock = threading.Lock()
        self._threads: dict[str, list[threading.Thread]] = {}
        self._off: set[str] = set()

    def is_off(self, path: str) -> bool:
        """Return whether the callback has no further calls in this process."""
        return path in self._off

    def add(self, path: str, thread: threading.Thread) -> None:
        """Note a call that did not end in time. Switch the callback off if too many of its calls still run."""
        with self._lock:
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


def _running() -> set[asyncio.Task[None]]:
    """The tasks that outlive their wait. The event loop itself keeps only weak references to tasks."""
    return set()


class PhaseCallbacks:
    """The callbacks of one wait."""

    def __init__(self, args: TriggerArgs, log: Logger) -> None:
        self._args = args
        self._log = log
        self._phase: Phase | None = None
        self._is_stuck = False
        self._skipped: set[str] = set()
        self._changes: deque[tuple[str, dict[str, Any]]] = deque()
        """The methods that are to be called, and their arguments."""
        self._task: asyncio.Task[None] | None = None

    def report(self, observation: Observation) -> None:
        """Call the callbacks soon, if the phase has changed."""
        if not self._args.callbacks or self._is_stuck or observation.phase is self._phase:
            return
        previous, self._phase = self._phase, observation.phase
        self._add(
            "on_phase_change",
            phase=str(observation.phase),
            previous=None if previous is None else str(previous),
            message=mask(observation.line),
            since=observation.since,
            category=str(observation.diagnosis.category),
        )

    def report_progress(self, line: SupervisorLine, report: SupervisorReport) -> None:
        """Call the callbacks that want to know of progress and of restarts in place soon."""
        if self._args.callbacks and not self._is_stuck and len(self._changes) < WAITING_CALLS_MAX:
            progress = None if report.progress is None else to_builtins(report.progress)
            change = {"event": line.event, "message": mask(line.message), "progress": progress}
            self._add("on_progress", **change, restarts=report.total)

    def _add(self, method: str, **arguments: Any) -> None:
        self._changes.append((method, {"gang": self._args.ref, "task": dict(self._args.task or {}), **arguments}))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._call_all(), name=f"callbacks of {self._args.name}")
            tasks = loop_local(_running)
            tasks.add(self._task)
            self._task.add_done_callback(tasks.discard)

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
