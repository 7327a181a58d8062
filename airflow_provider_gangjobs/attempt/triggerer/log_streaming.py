"""Streams logs of ranks into the log of the task, beside the wait for the gang.

The wait starts the streams when ranks begin to run, and stops them when it has the event. Nothing that happens to a
stream reaches the wait, with one exception: a pod that is being deleted is released some seconds later, and the event
is sent later, while the log of the pod is being read, because nobody can read the log afterwards.

The lines of triggers go over a channel (`LogChannel`) to Airflow's supervisor, which writes them to files
(`TriggerRunnerSupervisor` in `airflow/jobs/triggerer_job_runner.py`). It reads at most 4 KiB of lines between two
rounds of queries of its database. When it receives the event with which a trigger ends, it closes the log of this
trigger, and lines that it reads later are missing there. When the channel is full, the next line blocks the event loop
of all triggers. So a trigger waits with its event until its lines are read, and a stream waits while many are unread.

The event of a short wait is delayed (`sleep_until_resumable`), because the supervisor of a worker may notice the end of
the worker's process one heartbeat late. If the task runs again before this end has reached the scheduler, the scheduler
takes it for the end of the new run, and fails the task (airflow#72716, #71580).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.configuration import conf
from airflow_provider_gangjobs.airflow_api.task_log import log_lines, mask
from airflow_provider_gangjobs.cluster.loop_local import Notification, loop_local
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.gang.state.pods import rank_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorLine
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.logs.gang_streams import GangStreams, SupervisorLines


UNREAD_BYTES_MAX: Final = 16 * 1024
"""A stream waits while more than this is unread. A channel has room for 208 KiB by default. The kernel counts at least
1,280 bytes for each message, so the supervisor reads this in two to four turns of its loop."""
POLL_S: Final = 0.01
DRAIN_S: Final = 5.0
"""How long an event waits at most until the lines of its trigger are read."""
_COUNT_BYTES: Final = 4


def find_channel() -> int | None:
    """Return the file descriptor of the socket to which this process logs; `None` if it logs to no socket.

    Airflow gives the socket to structlog (`_configure_logs_over_json_channel` in `airflow/sdk`).
    """
    stream = getattr(structlog.get_config().get("logger_factory"), "io", None)
    with suppress(AttributeError, OSError, ValueError):
        descriptor: int = stream.fileno()  # type: ignore[union-attr]  # no stream has no `fileno`
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    return None


class LogChannel:
    """The channel of this process, shared by the triggers of an event loop.

    :param find: Returns the file descriptor of the channel, or `None` if there is none.
    """

    def __init__(self, find: Callable[[], int | None] = find_channel) -> None:
        self._find = find
        self._streams = asyncio.Lock()
        self._events = asyncio.Lock()
        self._waiting_events = 0
        self._unread = 0
        self._read = 0
        """At least so many bytes were read since the first drain, in order."""

    def unread_bytes(self) -> int | None:
        """Return how many bytes of memory the lines use that the supervisor has not read. `None` means unknown.

        If the process logs to something else than a socket, lines are written at once, and the result is 0.
        """
        channel = self._find()
        if channel is None:
            return 0
        try:
            count = fcntl.ioctl(channel, termios.TIOCOUTQ, bytes(_COUNT_BYTES))
        except OSError:  # only Linux counts the bytes of a local socket
            return None
        return int.from_bytes(count, sys.byteorder)

    async def wait_until_free(self) -> None:
        """Wait until further lines of a stream have room. Events go first."""
        async with self._streams:
            while self._waiting_events or (self.unread_bytes() or 0) > UNREAD_BYTES_MAX:  # noqa: ASYNC110 - no event tells that the supervisor reads
                await asyncio.sleep(POLL_S)

    def _look(self) -> int | None:
        unread = self.unread_bytes()
        if unread is not None:
            self._read += max(0, self._unread - unread)
            self._unread = unread
        return unread

    async def drain(self, within_s: float = DRAIN_S) -> bool:
        """Wait until all lines that were logged before are read. Return false if this is unknown, or takes too long.

        Lines that are logged meanwhile do not delay the end of the wait.
        """
        until = (self._look() or 0) + self._read
        self._waiting_events += 1
        try:
            async with asyncio.timeout(within_s), self._events:
                while (unread := self._look()) and self._read < until:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
                return unread is not None
        except TimeoutError:
            return False
        finally:
            self._waiting_events -= 1


def log_channel() -> LogChannel:
    """Return the channel that the triggers of the running event loop share."""
    return loop_local(LogChannel)


HEARTBEAT_S: Final = 5.0
"""The default of Airflow's `[workers] min_heartbeat_interval`."""
MARGIN_S: Final = 1.5
"""The time in which the scheduler reads the report of the executor. The loop of the scheduler takes a second."""


async def sleep_until_resumable(deferred_at: float) -> bool:
    """Sleep until the task may resume, and until Airflow has read the last lines of the trigger; see `log_channel`.

    Return false if Airflow may not have read them.

    :param deferred_at: Time of the deferral, by the clock of the running loop.
    """
    delay_s = conf.getfloat("workers", "min_heartbeat_interval", fallback=HEARTBEAT_S) + MARGIN_S
    await asyncio.sleep(max(0.0, deferred_at + delay_s - asyncio.get_running_loop().time()))
    return await log_channel().drain()


def without_streamed(event: GangEvent, log: Logger) -> GangEvent:
    """Return the event of a gang without what was streamed of its logs, so that a worker copies them as a whole."""
    if not event.streamed and not event.whole_logs:
        return event
    log.warning(
        "Airflow may not have read all streamed lines of gang %s, so its logs are copied as a whole, and lines appear "
        "a second time",
        event.ref,
    )
    return replace(event, streamed={}, whole_logs=())


STREAM_AFTER_S: Final = 3.0
"""How long ranks have run before their logs are streamed: as long as Airflow's page takes to show further lines. The
logs of a gang that ends sooner are read once, after its end, without a stream and its positions."""
SUMMARY_S: Final = 5.0
"""How long the end of a gang waits for the end of the log of rank 0."""
STOP_S: Final = 1.0
SAVE_S: Final = 2.0
"""A triggerer that stops waits for its triggers, and a user who kills a task waits for the deletion of the gang."""
HOLD_S: Final = 10.0
"""How long the release of a pod waits for its log, after the outcome of the pod is recorded."""
FINISH_S: Final = 180.0
"""How long an event waits until the logs of deleted pods, which were read, are in the log of the task. Airflow reads
20 to 200 KiB a second from a triggerer, and lines that it reads after the event are missing."""


class LogStreaming:
    """The streams of one wait, as one asyncio task. The harvest uses it as its `LogReader`."""

    def __init__(
        self, args: TriggerArgs, log: Logger, on_line: Callable[[SupervisorLine], None] = lambda line: None
    ) -> None:
        self._args = args
        self._log = log
        self._on_line = on_line
        self.config: ClusterConfig | None = None
        """The cluster of the gang, once it is known."""
        self.is_allowed = True
        """Whether this process knows the secrets of the gang."""
        self.supervisor_lines: SupervisorLines | None = None
        """What the supervisors of the ranks have written; `None` if the gang has none."""
        self.task: TaskKey | None = None
        """The task of the gang, as its Job names it. Known with `supervisor_lines`."""
        self.restarts_max: int | None = None
        """How often programs may be restarted in place; `None` if the gang has no supervisors."""
        self._stored_progress = ""
        """What the Job says of the progress, and of the positions that other processes have reached."""
        self._pods: dict[str, PodView] = {}
        """The pods whose logs may be wanted, by uid, until the streams know them."""
        self._holds: dict[str, asyncio.Task[None]] = {}
        """The waits for the logs of pods that are being deleted, also those that are over."""
        self._saves = False
        self._must_begin = Notification()
        """The streams begin at once, because a pod is being deleted."""
        self._has_streams: asyncio.Event | None = None
        self._streams: GangStreams | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def positions(self) -> dict[str, str]:
        """How far each log was streamed."""
        return self._streams.positions if self._streams is not None else {}

    @property
    def whole_logs(self) -> tuple[str, ...]:
        """The logs that were streamed to their end."""
        return tuple(self._streams.whole_logs) if self._streams is not None else ()

    def start(self) -> None:
        """Start the streams after `STREAM_AFTER_S`, unless they have started or the cluster is not known yet."""
        if self._task is None and self.config is not None and self.is_allowed:
            self._has_streams = asyncio.Event()
            self._task = asyncio.create_task(self._run(self.config), name=f"logs of {self._args.name}")

    # -- what the watch shows ---------------------------------------------------------------------------------

    def observe_job(self, job: StoredGang) -> None:
        """Note the positions that other processes have stored."""
        if job.ref != self._args.ref:
            return
        self._stored_progress = job.view.metadata.annotations.progress or ""
        self.restarts_max = job.record.restarts
        if self.restarts_max is not None:
            if self.supervisor_lines is None:
                from airflow_provider_gangjobs.tracking.logs.gang_streams import SupervisorLines

                self.supervisor_lines = SupervisorLines(alone=job.record.restarts_alone, on_line=self._on_line)
            self.task = job.record.task
            self.supervisor_lines.resume(self._stored_progress)

    def observe(self, pods: Sequence[PodView]) -> None:
        """Note where the streamed ranks run. Read the logs of wanted pods that are being deleted."""
        if self.supervisor_lines is not None:
            self.supervisor_lines.observe(pods)
        deleted = [pod for pod in pods if self._must_be_read_now(pod)]
        streamed = [pod for pod in pods if rank_of(pod) in self._args.stream_ranks]
        if self._streams is not None:
            self._streams.observe([*streamed, *deleted])
        else:
            self._pods |= {pod.metadata.uid: pod for pod in (*streamed, *deleted)}
        if deleted:
            self._must_begin.notify()
            self.start()

    def _must_be_read_now(self, pod: PodView) -> bool:
        if pod.metadata.deletion_timestamp is None:
            return False
        from airflow_provider_gangjobs.tracking.logs.last_lines import must_be_read_now

        return must_be_read_now(pod, self._args.stream_ranks, Logs(self._args.kept_logs))

    def notify_when_read(self, pod: PodView, notify: Callable[[str], None]) -> bool:
        """Return whether the log of a pod is being read. If so, call `notify` when it is, at most `HOLD_S` later."""
        uid = pod.metadata.uid
        if self._task is None or not self._must_be_read_now(pod):
            return False
        if uid not in self._holds:
            self._holds[uid] = asyncio.create_task(self._wait_until_read(pod), name=f"log of {pod.metadata.name}")
        hold = self._holds[uid]
        if hold.done():
            return False
        hold.add_done_callback(lambda _: notify(uid))
        return True

    async def _wait_until_read(self, pod: PodView) -> None:
        assert self._has_streams is not None, "the caller has checked that the streams have started"
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._has_streams.wait()
                if self._streams is not None:
                    await self._streams.wait_until_read(pod)

    async def finish(self, within_s: float) -> None:
        """Wait until the logs of the pods that were deleted are in the log of the task, as far as the time allows."""
        if self._streams is not None:
            await self._streams.finish(within_s)

    async def read_summary(self, within_s: float) -> None:
        """Read the end of the log of rank 0, if its supervisor has a summary there that was not streamed.

        Without the summary, some things about the gang stay unknown.
        """
        lines = self.supervisor_lines
        if lines is None or lines.alone or lines.report.is_final or self.config is None:
            return
        from airflow_provider_gangjobs.cluster.errors import ClusterError
        from airflow_provider_gangjobs.cluster.informer import informers
        from airflow_provider_gangjobs.gang.outcome.restarts import parse_line
        from airflow_provider_gangjobs.tracking.logs.gang_streams import LAST_LINES_READ
        from airflow_provider_gangjobs.tracking.logs.whole_logs import read_last_parts

        source = lines.source_of(0)
        if source is None:
            return
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(within_s), informers().client(self.config) as client:
                for part in await read_last_parts(client, source, lines_max=LAST_LINES_READ):
                    if (found := parse_line(part.text)) is not None:
                        lines.report = lines.report.with_line(found[1])

    # -- the end ---------------------------------------------------------------------------------------------

    async def stop(self, *, save: bool, has_run: bool = False) -> None:
        """Stop the streams. Takes at most `STOP_S`, and `SAVE_S` to save.

        :param save: Whether to save the positions, for the process that continues the streams.
        :param has_run: Whether ranks have run, so that an earlier process may have streamed their logs.
        """
        self._saves = save
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_S + SAVE_S * save)
        for hold in self._holds.values():
            hold.cancel()
        if save:
            return
        if has_run and self._args.stream_ranks:
            await self._note_positions()

    async def _note_positions(self) -> None:
        """Note how far an earlier process has streamed, if the gang ended before this process began to stream."""
        from airflow_provider_gangjobs.cluster.informer import informers

        if self.config is not None and self._streams is None:
            async with informers().client(self.config) as client:
                self._streams = self._new_streams(client)
        if self._streams is not None:
            self.write(self._streams.notes)

    async def _run(self, config: ClusterConfig) -> None:
        from airflow_provider_gangjobs.cluster.informer import informers

        try:
            await self._must_begin.wait(STREAM_AFTER_S)
            async with informers().client(config) as client:
                self._streams = streams = self._new_streams(client)
                if self._has_streams is not None:
                    self._has_streams.set()
                try:
                    await streams.run()
                finally:
                    if self._saves:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(SAVE_S):
                                await streams.save()
        except Exception:  # a defect of a stream must not end the wait for the gang
            self._log.exception("The logs of gang %s are not streamed any more", self._args.ref)

    def _new_streams(self, client: Client) -> GangStreams:
        from airflow_provider_gangjobs.tracking.logs.gang_streams import GangStreams, PositionStore, WantedLogs

        args = self._args
        # Each deferral of a try has a trigger of its own, whose log may replace the log of the one before.
        store = PositionStore(client, args.ref, self._stored_progress, f"{args.claim}/{args.tracking_errors}")
        kept_bytes_max = max(args.kept_bytes_max, args.stream_bytes_max)
        wanted = WantedLogs(args.stream_ranks, args.stream_bytes_max, Logs(args.kept_logs), kept_bytes_max)
        streams = GangStreams(store, wanted, output=self, mask=mask, supervisor_lines=self.supervisor_lines)
        streams.observe(list(self._pods.values()))
        return streams

    def write(self, lines: Sequence[str]) -> None:
        """Write lines of a stream into the log of the task."""
        log_lines(lines, self._log)

    async def wait_until_free(self) -> None:
        """Wait until the triggerer can write further lines without blocking its event loop."""
        await log_channel().wait_until_free()

    async def drain(self, within_s: float) -> bool:
        """Wait at most this long until Airflow has read all lines of this process. Return false if it may not have."""
        return await log_channel().drain(within_s)
