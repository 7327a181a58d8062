"""Streams the logs of chosen ranks of one gang, in an asyncio task of its own for each rank.

When pods are deleted, which the Job controller does with the other pods of a rank that fails, the logs that the task
wants are read to their end at once, also of ranks that are not streamed. See `rank_stream`.

A trigger has no state of its own that survives its process, and Airflow offers a trigger no place for one. So the
positions of streamed logs are kept on the Job (`PositionStore`). They are written every few seconds while lines arrive
(`StreamLimits.save_every_s`), and when the stream is stopped. After a process was killed, at most the lines of this
time appear a second time, after a note that says so. None is lost. A gang that ends sooner writes no position.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.http.log_reader import LogPosition
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.outcome.restarts import Progressed, StreamedTo, SupervisorReport
from airflow_provider_gangjobs.gang.record import read_mark, to_text
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.gang.state.pods import has_ended, has_started, rank_of, started_at
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_PROGRESS
from airflow_provider_gangjobs.tracking.logs.last_lines import RANKS_MAX, main_source, must_be_read_now, sources_of
from airflow_provider_gangjobs.tracking.logs.rank_stream import (
    END_BYTES,
    SAVE_EVERY_MAX_S,
    LineOutput,
    LogStream,
    StreamBudget,
    StreamLimits,
)
from airflow_provider_gangjobs.tracking.logs.whole_logs import LineWriter, format_note, read_last_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorLine
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource


DRAIN_S: Final = 5.0
"""How long a stream waits until its lines are read, before it saves its position."""
LAST_LINES: Final = 10
"""How many lines of a rank that failed are shown when its program is restarted."""
LAST_LINES_READ: Final = 200
"""How many lines are read for them: the restarted program may have written some of them already."""
LAST_LINES_WITHIN_S: Final = 30.0
CLOCKS_DIFFER_S: Final = 0.2
"""How far the clocks of two nodes differ, typically. The time of the failure is by the clock of rank 0."""
NEW_RESTARTS_MAX: Final = 1000
"""How often last lines are read: a program may write the lines of a supervisor, too."""
READ_WITHIN_S: Final = 60.0
"""How long the end of a gang waits for the logs of deleted pods. An API server that answers sends them in seconds."""
END_WITHIN_S: Final = 5.0
"""How long the end of a log may take whose other lines were left out."""
DRAIN_AT_END_S: Final = 0.5
"""How long a process that ends waits until its lines are read. Airflow reads them also while the process ends."""


AHEAD_BYTES_MAX: Final = 8 * 2**20
"""How much of the logs of one gang may be in memory, read and not written, when its pods are deleted."""
UNNOTED_AFTER_S: Final = 30.0
"""Airflow gives the triggers of a killed triggerer to another one after this time. So if a rank has run for longer when
this process begins, another process may have streamed its log, and may have been killed before it saved a position."""


PROCESS: Final = secrets.token_hex(4)
"""Names this process. Airflow empties the log of a trigger that the same triggerer runs again."""


class PositionStore:
    """The positions of a gang's logs as another process has stored them. Writes those of this process.

    :param stored: `ANNOTATION_PROGRESS` of the Job as this process sees it before it streams; empty if there is none.
        An unreadable annotation is no position.
    :param log_id: Names the log of the task into which the logs are streamed, such as a try of the task. The positions
        for another log are of no use, because that log has none of the lines.
    """

    def __init__(self, client: Client, ref: GangRef, stored: str, log_id: str, process: str = PROCESS) -> None:
        self.client = client
        self.ref = ref
        self._log_id = log_id
        self._process = process
        self._saved: tuple[dict[str, str], bool] | None = None
        self.is_new = not stored
        """No process has stored anything."""
        self.positions: dict[str, str] = {}
        """The stored positions by `LogSource.key`."""
        self.repeated_s = 0.0
        """The time before the end of the stream whose lines the stored positions may not include; 0 if the positions
        are the last ones of the stream."""
        known = read_mark(Progressed, stored)
        self._report = known.report
        if known.streamed and known.streamed.log == log_id and known.streamed.process != process:
            self.repeated_s = known.streamed.every_s
            self.positions = known.streamed.positions

    async def save(
        self, positions: Mapping[str, str], *, every_s: float, report: SupervisorReport | None = None
    ) -> None:
        """Write the positions if they have changed. A failure is ignored, because the next call writes them again.

        The first call writes them also if there is none yet, so that a process that comes later knows of the stream.
        A process that was killed before is recognized by the time for which the rank runs (`UNNOTED_AFTER_S`).

        :param every_s: After how many seconds the positions are written again; 0 if the stream ends at them.
        :param report: What the lines before these positions say about the progress of the gang. It is written by the
            same request. `None` leaves the report as it is.
        """
        is_exact = not every_s
        if self._saved in ((positions, is_exact), (positions, True)):
            return
        self._report = report or self._report
        streamed = StreamedTo(log=self._log_id, process=self._process, every_s=every_s, positions=dict(positions))
        mark = to_text(Progressed(report=self._report, streamed=streamed))
        patch = {"metadata": {"annotations": {ANNOTATION_PROGRESS: mark}}}
        ref = self.ref
        with suppress(ClusterError):
            await patch_uid(self.client, JOBS, ref.name, ref.namespace, ref.uid, patch)
            self._saved = dict(positions), is_exact


class WantedLogs(NamedTuple):
    """The logs of a gang that the log of the task is to have while the gang runs, or when pods are deleted."""

    ranks: Sequence[int]
    """The ranks whose logs are streamed."""
    bytes_max: int
    """How many bytes of each log are streamed."""
    kept: Logs = Logs.NONE
    """The policy that selects the further logs that are read when their pods are deleted."""
    kept_bytes_max: int = AHEAD_BYTES_MAX
    """How many bytes of all logs are read when pods are deleted."""


class SupervisorLines:
    """What the lines of the supervisors of one gang say, in the logs that were read.

    :param alone: Whether each rank is restarted alone. Otherwise rank 0 reports all ranks.
    :param on_line: Called with each new line, when the report has it.
    """

    def __init__(self, *, alone: bool = False, on_line: Callable[[SupervisorLine], None] = lambda line: None) -> None:
        self.alone = alone
        self._on_line = on_line
        self.report = SupervisorReport()
        self._pods: dict[int | None, PodView] = {}
        """The last observed pod of each rank that has started."""
        self._has_lines = False
        self._restarts: set[tuple[int | None, int | None]] = set()

    def observe(self, pods: Sequence[PodView]) -> None:
        """Note pods that have changed. With new pods, the supervisors begin anew."""
        for pod in filter(has_started, pods):
            rank = rank_of(pod)
            if _is_not_older(pod, self._pods.get(rank)):
                self._pods[rank] = pod
        first = self._pods.get(0)
        if first is not None and self.report.pod not in ("", first.metadata.name):
            self.report = SupervisorReport()
            self._restarts.clear()

    def source_of(self, rank: int | None) -> LogSource | None:
        """Return the log of the program of a rank; `None` if the rank has not started."""
        pod = self._pods.get(rank)
        return None if pod is None else main_source(pod)

    @property
    def new_report(self) -> SupervisorReport | None:
        """The report; `None` if no supervisor has written a line."""
        return self.report if self._has_lines else None

    def resume(self, stored: str) -> None:
        """Begin with what another process has noted on the Job (`ANNOTATION_PROGRESS`)."""
        if stored and not self._has_lines:
            self.report = read_mark(Progressed, stored).report

    def add(self, source: LogSource, line: SupervisorLine) -> bool:
        """Note a line in a log. Return whether it is new, which it is not if the log is read again."""
        known = self._pods.get(source.rank)
        if (source.rank != 0 and not self.alone) or (known is not None and known.metadata.name != source.pod):
            return False
        self._has_lines = True
        self.report = self.report.with_line(line)
        if self.alone:  # nobody reports the other ranks
            self.report = replace(self.report, is_final=False)
        else:
            self.report = replace(self.report, pod=source.pod)
        key = (line.rank, line.number)
        is_new = line.event != "restart" or (key not in self._restarts and len(self._restarts) < NEW_RESTARTS_MAX)
        if line.event == "restart":
            self._restarts.add(key)
        if is_new:
            self._on_line(line)
        return is_new


def _is_not_older(pod: PodView, known: PodView | None) -> bool:
    return known is None or _age_order(known) <= _age_order(pod)


def _age_order(pod: PodView) -> float:
    created = pod.metadata.creation_timestamp
    return 0.0 if created is None else created.timestamp()


class GangStreams:
    """The streams of one gang. `run` ends only when it is cancelled.

    The watch of the gang shows the pods (`observe`) and the stored positions, so neither costs a request.

    :param store: The stored positions of the gang.
    :param output: The log of the task.
    :param mask: Returns a text with its secrets replaced.
    :param supervisor_lines: Collects what the supervisors of the ranks write.
    """

    def __init__(
        self,
        store: PositionStore,
        wanted: WantedLogs,
        *,
        output: LineOutput,
        mask: Callable[[str], str],
        supervisor_lines: SupervisorLines | None = None,
    ) -> None:
        self._supervisor_lines = SupervisorLines() if supervisor_lines is None else supervisor_lines
        self._client = client = store.client
        self._ref = store.ref
        self._wanted = wanted
        self._deleted: dict[str, PodView] = {}
        """The last views of the pods that are being deleted, and whose logs are wanted, by uid."""
        self._last_streams: dict[str, LogStream] = {}
        """The streams that read the logs of these pods, by uid."""
        self._tasks: asyncio.TaskGroup | None = None
        self._have_ended = False
        self._has_tasks = asyncio.Event()
        self._store = store
        self._output = output
        self._mask = mask
        self._limits = loop_local(StreamLimits)
        self._requests = self._limits.requests_of(client)
        self._positions = store.positions
        self._began = client.server_clock.now() if client.server_clock.is_known else None
        self._streamed: dict[int, PodView] = {}
        """The newest pod of each streamed rank that has started. After a preemption, a rank has another pod."""
        self._streams: dict[str, LogStream] = {}
        self._ended: set[str] = set()
        """The uids of the pods that have succeeded or failed."""

    @property
    def positions(self) -> dict[str, str]:
        """How far each log was streamed, by `LogSource.key`, in the form of `GangEvent.streamed`."""
        reached = {key: str(stream.position) for key, stream in self._streams.items() if stream.position is not None}
        unread = dict.fromkeys(self._streams, "")
        return unread | self._positions | reached

    @property
    def whole_logs(self) -> list[str]:
        """The logs that were read to their end, and written, by `LogSource.key`."""
        return [key for key, stream in self._streams.items() if stream.is_whole]

    @property
    def notes(self) -> list[str]:
        """Notes on logs that another process has streamed, and that no stream of this process continues."""
        if not self._store.repeated_s:
            return []
        labels = [key for key in self._positions if key not in self._streams]
        if not self._positions and not self._streams:  # the process before was killed before it saved a position
            labels = [self._ref.name]
        return [format_note(label, self._repetition) for label in labels]

    @property
    def _repetition(self) -> str:
        if self._store.is_new:
            return "the rank ran before. If another triggerer has streamed this log, lines may appear a second time"
        return (
            "another triggerer streamed this log, and was killed: the lines that follow, of about "
            f"{self._store.repeated_s:.0f} seconds, may appear a second time"
        )

    async def run(self) -> None:
        """Stream the logs, and save their positions from time to time."""
        limits, clock = self._limits, self._client.clock
        limits.gangs += 1
        try:
            if self._positions:  # from here on, the positions of the process before are not the last ones
                await self._save(limits.save_every_s)
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._has_tasks.set()
                for pod in self._deleted.values():
                    self._read_ahead(pod)
                for pod in self._streamed.values():
                    tasks.create_task(self._stream(pod))
                # Gangs that began at the same time save their positions at different times.
                save_in_s = clock.random_between(0.0, limits.save_every_s)
                while True:
                    await clock.sleep(save_in_s)
                    save_in_s = limits.save_every_s
                    await self._save(save_in_s)
        finally:
            limits.gangs -= 1
            self._have_ended = True

    async def save(self) -> None:
        """Save the positions of the streams, which have ended.

        The process may be about to end, so this does not wait for the requests of other gangs.
        """
        positions, report = self.positions, self._supervisor_lines.new_report
        await self._output.drain(DRAIN_AT_END_S)
        await self._store.save(positions, every_s=0.0, report=report)

    async def _save(self, every_s: float) -> None:
        """Save positions of lines that are in the log of the task also if this process is killed."""
        positions, report = self.positions, self._supervisor_lines.new_report
        if await self._output.drain(DRAIN_S):
            async with self._requests:
                await self._store.save(positions, every_s=every_s, report=report)

    async def _stream(self, pod: PodView) -> None:
        source = main_source(pod)
        if source is not None and source.key not in self._streams:  # else its pod is being deleted
            await self._new_stream(source, pod, self._wanted.bytes_max).run()

    def _new_stream(self, source: LogSource, pod: PodView, bytes_max: int) -> LogStream:
        before, uid = self._streams.get(source.key), pod.metadata.uid
        position = before.position if before else LogPosition.parse(self._positions.get(source.key, ""))
        stream = LogStream(
            self._client,
            source,
            position,
            lines=LineWriter(source.label, self._output.write, self._mask, partial(self._note_line, source)),
            output=self._output,
            budget=StreamBudget(bytes_max, self._ahead_bytes_max),
            has_pod_ended=lambda: uid in self._ended,
        )
        self._streams[source.key] = stream
        what = f"log of pod {source.pod}, container {source.container}"
        if before is not None:
            stream.note(f"{what}, continued, because the pod is being deleted")
        elif self._store.repeated_s:
            stream.note(f"{what}: {self._repetition}")
        elif position is None:
            stream.note(f"{what}, {'while it runs' if bytes_max else 'because the pod is being deleted'}")
        else:
            stream.note(f"{what}, continued by another triggerer")
        return stream

    # -- the supervisors --------------------------------------------------------------------------------------

    def _note_line(self, source: LogSource, line: SupervisorLine) -> None:
        """Note a line of a supervisor, and have the last lines of a failed rank written that is not streamed."""
        if not self._supervisor_lines.add(source, line) or self._tasks is None:
            return
        failed = (
            None
            if line.event != "restart" or line.rank in self._wanted.ranks
            else self._supervisor_lines.source_of(line.rank)
        )
        if failed is not None:
            self._tasks.create_task(self._write_last_lines(failed, line))

    async def _write_last_lines(self, source: LogSource, line: SupervisorLine) -> None:
        """Write the last lines of a rank before its program failed. The program may have been started again."""
        writer = LineWriter(source.label, self._output.write, self._mask)
        until_ns = math.inf if line.at is None else (line.at + CLOCKS_DIFFER_S) * 1e9
        try:
            async with asyncio.timeout(LAST_LINES_WITHIN_S), self._requests:
                parts = await read_last_parts(self._client, source, lines_max=LAST_LINES_READ)
        except (ClusterError, TimeoutError) as error:
            writer.note(f"no last lines before restart {line.number}: {str(error) or 'the log was not read in time'}")
            return
        last = [part for part in parts if part.time_ns and part.time_ns <= until_ns][-LAST_LINES:]
        writer.note(f"last lines before restart {line.number}")
        writer.write(last)
        writer.flush()

    # -- the pods ---------------------------------------------------------------------------------------------

    def observe(self, pods: Sequence[PodView]) -> None:
        """Stream the logs of ranks that have started, and read the logs of the pods that are being deleted."""
        if self._have_ended:
            return
        self._ended |= {pod.metadata.uid for pod in pods if has_ended(pod)}
        for pod in pods:
            rank = rank_of(pod)
            if rank is not None and rank in self._wanted.ranks and has_started(pod) and self._is_new(rank, pod):
                self._streamed[rank] = pod
                self._note_earlier_stream(pod)
                if self._tasks is not None:
                    self._tasks.create_task(self._stream(pod))
            if not must_be_read_now(pod, self._wanted.ranks, self._wanted.kept):
                continue
            is_named = rank == 0 or rank in self._wanted.ranks
            if is_named or pod.metadata.uid in self._deleted or len(self._deleted) < RANKS_MAX:
                self._deleted[pod.metadata.uid] = pod
                if self._tasks is not None:
                    self._read_ahead(pod)

    def _is_new(self, rank: int, pod: PodView) -> bool:
        known = self._streamed.get(rank)
        return (known is None or known.metadata.uid != pod.metadata.uid) and _is_not_older(pod, known)

    def _note_earlier_stream(self, pod: PodView) -> None:
        started = started_at(pod)
        if not self._store.is_new or self._began is None or started is None:
            return
        if (self._began - started).total_seconds() > UNNOTED_AFTER_S:
            self._store.repeated_s = SAVE_EVERY_MAX_S

    def _read_ahead(self, pod: PodView) -> None:
        assert self._tasks is not None, "the caller has checked that the streams run"
        uid, source = pod.metadata.uid, next(sources_of(pod))
        stream = self._last_streams.get(uid)
        if stream is None:
            stream = self._streams.get(source.key)
            if stream is None or (stream.has_read.is_set() and not stream.is_at_end):
                stream = self._new_stream(source, pod, bytes_max=0)
                self._tasks.create_task(stream.run())
            self._last_streams[uid] = stream
        stream.read_ahead(pod)

    def _ahead_bytes_max(self) -> int:
        return min(self._wanted.kept_bytes_max, AHEAD_BYTES_MAX) // max(len(self._last_streams), 1)

    async def wait_until_read(self, pod: PodView) -> None:
        """Wait until the log of a pod that is being deleted is read."""
        if pod.metadata.uid in self._deleted:
            await (await self._last_stream(pod.metadata.uid)).has_read.wait()

    async def _last_stream(self, uid: str) -> LogStream:
        """Return the stream that reads the log of a deleted pod, once the streams run."""
        await self._has_tasks.wait()
        return self._last_streams[uid]

    async def finish(self, within_s: float) -> None:
        """Wait until the logs of deleted pods are written, and leave out what takes longer. Does not raise.

        Logs that are not read within `READ_WITHIN_S` are left out, and what was read gets the rest of the time.
        """
        clock = self._client.clock
        until = clock.monotonic() + within_s
        if not await self._wait_for_logs(attrgetter("has_read"), min(within_s, READ_WITHIN_S)):
            self._give_up(stream for stream in self._last_streams.values() if not stream.has_read.is_set())
            if not self._has_tasks.is_set():
                return
        if not await self._wait_for_logs(attrgetter("has_written"), until - clock.monotonic()):
            self._give_up(self._last_streams.values())
            await self._wait_for_logs(attrgetter("has_written"), END_WITHIN_S)

    async def _wait_for_logs(self, done: Callable[[LogStream], asyncio.Event], within_s: float) -> bool:
        """Wait until all streams of deleted pods have set an event. Return false if this takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for uid in list(self._deleted):
                    await done(await self._last_stream(uid)).wait()
                return True
        return False

    def _give_up(self, streams: Iterable[LogStream]) -> None:
        for stream in streams:
            stream.give_up(bytes_max=END_BYTES)
