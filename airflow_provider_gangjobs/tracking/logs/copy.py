"""Copies the logs of the chosen ranks into the log of the task, after the gang has ended.

One log after the other is read in chunks, so memory does not depend on their size. The limit is for all logs together:
each log may use its share of what the logs before it have left. Of a log that exceeds its share, the beginning is
written as it arrives, and the end is kept in memory until the log ends: the end holds the exception of a program that
failed. What is left out is said at the place where it is missing.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.http.log_reader import (
    LastBytes,
    LogParser,
    LogPart,
    LogPosition,
    skip_partial_character,
)
from airflow_provider_gangjobs.cluster.http.transport import LogQuery
from airflow_provider_gangjobs.gang.outcome.restarts import readable
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.jobs.requests import list_pods
from airflow_provider_gangjobs.kube.text import keep_end, pluralize
from airflow_provider_gangjobs.tracking.logs.last_lines import (
    POD_GONE,
    explain_problem,
    select_outcomes,
    select_sources,
    without_pod,
)
from airflow_provider_gangjobs.tracking.logs.whole_logs import (
    LineWriter,
    format_note,
    limit_notes,
    read_log_chunks,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.spec import LogOptions
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource


END_BYTES_MAX: Final = 4 * 2**20
"""The most that is kept in memory of one log."""
PARTS_PER_WRITE: Final = 256
LAST_PARTS: Final = 10


class Omission(Struct, frozen=True):
    """What is missing between the beginning and the end of a log."""

    lines: int
    bytes: int
    in_line: bool
    """Whether the end begins in the middle of a line."""

    def __str__(self) -> str:
        cut = ", and the beginning of the line that follows" if self.in_line else ""
        return f"{self.lines:,} lines, {self.bytes:,} bytes{cut}"


class HeadAndEnd:
    """Receives a log in chunks, and writes at most about `bytes_max` bytes of it.

    :param write: Called with parts, in the order of the log.
    :param omit: Called at the place where something is left out.
    """

    def __init__(
        self, bytes_max: int, write: Callable[[Sequence[LogPart]], None], omit: Callable[[Omission], None]
    ) -> None:
        self._end_bytes = min(bytes_max // 4, END_BYTES_MAX)
        self._head_bytes = bytes_max - self._end_bytes
        self._write_parts = write
        self._omit = omit
        self._parser = LogParser()
        self._end: LastBytes | None = None
        self.written_bytes = 0
        """How many bytes of the log were written so far."""
        self.lines = 0
        """How many lines the log had so far. A last line without a line end counts."""
        self.bytes = 0
        self.last_parts: deque[LogPart] = deque(maxlen=LAST_PARTS)
        """The last parts that were written."""
        self._is_in_line = False

    def feed(self, chunk: bytes) -> None:
        """Add the next chunk of the log."""
        if not chunk:
            return
        self.bytes += len(chunk)
        self.lines += chunk.count(b"\n")
        self._is_in_line = not chunk.endswith(b"\n")
        if self._end is not None:
            self._end.feed(chunk)
            return
        parts = self._parser.feed(chunk)
        room, fitting = self._head_bytes - self.written_bytes, 0
        while fitting < len(parts) and room > 0:
            room -= len(parts[fitting].text) + parts[fitting].ends
            fitting += 1
        self._write(parts[:fitting])
        if room <= 0:
            self._end = LastBytes(self._end_bytes)
            rest = parts[fitting:] + self._parser.end()
            self._end.feed(b"".join(part.text + b"\n" if part.ends else part.text for part in rest))

    def end(self) -> None:
        """Write the end of the log."""
        self.lines += self._is_in_line
        if self._end is None:
            self._write(self._parser.end())
            return
        text, is_in_line = self._end.take()
        if is_in_line:
            text = skip_partial_character(text)
        if omitted := self._end.bytes - len(text):
            self._omit(Omission(self._end.lines - text.count(b"\n"), omitted, is_in_line))
        parser = LogParser()
        self._write([*parser.feed(text), *parser.end()])

    def _write(self, parts: Sequence[LogPart]) -> None:
        if not parts:
            return
        self.written_bytes += sum(len(part.text) + part.ends for part in parts)
        self.last_parts.extend(parts[-LAST_PARTS:])
        for at in range(0, len(parts), PARTS_PER_WRITE):
            self._write_parts(parts[at : at + PARTS_PER_WRITE])


LAST_BYTES: Final = 65536
LAST_CHARACTERS: Final = 4096


class CopiedLog(Struct, frozen=True):
    """A log that was copied, as far as it could be read."""

    source: LogSource
    last_lines: str
    """The end of the log, for an error message."""


class TaskLog(Struct, frozen=True):
    """The log of a task, to which logs of ranks are copied, and what it has already of them, by `LogSource.key`."""

    write: Callable[[Sequence[str]], None]
    """Called with lines, in order."""
    mask: Callable[[str], str] = str
    """Returns a text with its secrets replaced."""
    positions: Mapping[str, str] = {}
    """How far logs were streamed while the gang ran, from `GangEvent.streamed`."""
    whole: Collection[str] = ()
    """The logs that were streamed to their end, from `GangEvent.whole_logs`."""


class _LogCopier(Struct, frozen=True):
    client: Client
    log: TaskLog

    async def copy(self, source: LogSource, *, bytes_max: int) -> tuple[CopiedLog, int]:
        """Copy one log. Return the result, and how many bytes were written.

        A log that was streamed to its end is not read again, but for the last lines of a pod that failed.
        """
        if source.key in self.log.whole:
            last = "" if source.pod_succeeded else await self._read_last_lines(source)
            return CopiedLog(source, self._shown(last)), 0
        position = LogPosition.parse(self.log.positions.get(source.key, ""))
        lines = LineWriter(source.label, self.log.write, self.log.mask)
        what = f"log of pod {source.pod}, container {source.container}"
        written = 0
        if source.restarts and position is None:
            lines.note(f"{what}, before its last restart")
            if source.restarts > 1:
                lines.note(
                    f"left out here: the kubelet keeps no log of the first {pluralize(source.restarts - 1, 'run')}"
                )
            earlier = read_log_chunks(self.client, source, LogQuery(previous=True))
            _, written = await self._copy_run(source, lines, earlier, bytes_max // 4)
        lines.note(what if position is None else f"{what}, after what was streamed")
        on_other_file = None if position is None else partial(lines.note, OTHER_FILE)
        chunks = read_log_chunks(self.client, source, LogQuery(), position=position, on_other_file=on_other_file)
        log, more = await self._copy_run(source, lines, chunks, bytes_max - written)
        return log, written + more

    async def _copy_run(
        self, source: LogSource, lines: LineWriter, chunks: AsyncGenerator[bytes, None], bytes_max: int
    ) -> tuple[CopiedLog, int]:
        where = f"`{source.command}` shows all lines while the pod exists"
        log = HeadAndEnd(bytes_max, lines.write, lambda omission: lines.note(f"left out here: {omission}; {where}"))
        problem = ""
        async with aclosing(chunks):
            try:
                async for chunk in chunks:
                    log.feed(chunk)
            except ClusterError as error:
                problem = explain_problem(error, source.removal)
        log.end()
        is_streamed = bool(self.log.positions.get(source.key))
        if not problem:
            after = " after the stream" if is_streamed else ""
            lines.note(f"end of the log: {log.lines:,} lines, {log.bytes:,} bytes{after}")
        elif log.bytes:
            lines.note(f"left out here: the rest of the log could not be read: {problem}; {where}")
        elif is_streamed:
            lines.note(f"left out here: what was not streamed could not be read: {problem}")
        else:
            lines.note(f"no log: {problem}")
        last = text_of(log.last_parts)
        # The error of a pod that failed shows its last lines.
        if not problem and not source.pod_succeeded and is_streamed and len(log.last_parts) < LAST_PARTS:
            last = await self._read_last_lines(source) or last
        return CopiedLog(source, self._shown(last)), log.written_bytes

    def _shown(self, last_lines: str) -> str:
        """Return last lines as the error of a pod shows them."""
        return keep_end(self.log.mask(readable(last_lines.encode()).decode()).rstrip("\n"), LAST_CHARACTERS)

    async def _read_last_lines(self, source: LogSource) -> str:
        try:
            tail = await self.client.log_tail(
                source.pod, source.namespace, container=source.container, tail_lines=LAST_PARTS, bytes_max=LAST_BYTES
            )
        except ClusterError:
            return ""
        return tail.text


OTHER_FILE: Final = (
    "the log does not continue where the stream ended, because the container was restarted or the kubelet has rotated "
    "the log; lines may be missing here, and lines that follow may appear a second time"
)


async def copy_logs(
    client: Client,
    ref: GangRef,
    options: LogOptions,
    log: TaskLog,
    *,
    outcomes: Sequence[Outcome] = (),
    pods: Sequence[PodView] = (),
) -> list[CopiedLog]:
    """Copy the logs that the options select, ordered by rank. Does not raise errors of the cluster.

    :param outcomes: Outcomes of the ranks, which determine the ranks that failed first.
    :param pods: The pods of the gang, if they are known. They are listed otherwise.
    """
    if options.policy is Logs.NONE:
        return []
    try:
        pods = pods or await list_pods(client, ref)
    except ClusterError as error:
        log.write([format_note(ref.name, f"no log: {error}")])
        return []
    sources, failed = select_sources(pods, options, outcomes)
    copier = _LogCopier(client, log)
    reached = [LogPosition.parse(text) for text in log.positions.values()]
    streamed = sum(position.total for position in reached if position is not None)
    # The streams stop at half of the limit.
    left = options.bytes_max - min(streamed, options.bytes_max // 2)
    copied = []
    for number, source in enumerate(sources):
        one, written = await copier.copy(source, bytes_max=max(left // (len(sources) - number), 1))
        left -= written
        copied.append(one)
    if failed:
        ranks = pluralize(failed, "more rank")
        log.write([format_note(ref.name, f'left out here: the logs of {ranks} that failed; logs="all" copies them')])
    if missing := notes_on_missing_logs(pods, select_outcomes(outcomes, options.policy), log):
        log.write(limit_notes(ref, missing))
    return copied


def notes_on_missing_logs(pods: Collection[PodView], outcomes: Iterable[Outcome], log: TaskLog) -> list[str]:
    """Return a note for each log whose end is not in the log of the task, because its pod does not exist any more.

    :param outcomes: The outcomes of the pods whose logs the task wants.
    """
    wanted = {outcome.pod: outcome.name for outcome in without_pod(outcomes, pods)}
    existing = {pod.metadata.name for pod in pods}
    streamed = {key.partition("/")[0]: key for key in log.positions if key.partition("/")[0] not in existing}
    notes = []
    for pod in wanted | streamed:
        key = streamed.get(pod, "")
        if key not in log.whole:
            not_read = "left out here: what was not streamed could not be read" if log.positions.get(key) else "no log"
            notes.append(format_note(wanted.get(pod, pod), f"{not_read}: {POD_GONE.format(pod)}"))
    return notes
