"""The form of a rank's log lines in the log of the task.

Reads a log from its beginning, or from a position, to its end, in chunks and over broken connections.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import LOG_IDLE_TIMEOUT_S
from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.http.log_reader import PART_BYTES_MAX, LogCursor, LogParser, LogPart
from airflow_provider_gangjobs.cluster.http.transport import LogQuery
from airflow_provider_gangjobs.gang.outcome.restarts import LINE_START, parse_line, readable_line
from airflow_provider_gangjobs.kube.resources import PODS
from airflow_provider_gangjobs.kube.text import pluralize, to_printable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.http.log_reader import LogPosition
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorLine
    from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource


HELD_PARTS: Final = 64
"""How many parts wait for the parts after them. The lines of a longer secret, or of one that a program writes slowly,
are masked one by one, if they are long (`gang_secrets`)."""

LAST_BYTES_MAX: Final = 2**20
NOTES_MAX: Final = 20
"""How many ranks have a note of their own for the same reason."""


def text_of(parts: Sequence[LogPart]) -> str:
    """Return the text of parts. Bytes that are no UTF-8 are replaced."""
    return b"".join(part.text + b"\n" if part.ends else part.text for part in parts).decode(errors="replace")


def format_note(label: str, note: str) -> str:
    """Return a line that the provider adds to the log of a rank."""
    return f"[{label}] ({to_printable(note)})"


def limit_notes(ref: GangRef, notes: Sequence[str]) -> list[str]:
    """Return the first notes, and a note with the number of the others, which have the same reason."""
    others = len(notes) - NOTES_MAX
    more = [format_note(ref.name, f"the same holds for {pluralize(others, 'more rank')}")] if others > 0 else []
    return [*notes[:NOTES_MAX], *more]


class LineWriter:
    """Writes the parts of one log as lines, each with the label of the log. Secrets are masked.

    In place of a line of a supervisor (`gang.outcome.restarts`), its message is written.

    A secret may have several lines, and a long line is written in pieces. So some parts are held and masked together
    with the parts after them. Call `flush` at the end, and before a note.

    :param mask: Returns a text with its secrets replaced.
    :param on_line: Called with each line of a supervisor.
    """

    def __init__(
        self,
        label: str,
        write: Callable[[Sequence[str]], None],
        mask: Callable[[str], str] = str,
        on_line: Callable[[SupervisorLine], None] = lambda line: None,
    ) -> None:
        self._label = label
        self._write_lines = write
        self._mask = mask
        self._on_line = on_line
        self._held: list[LogPart] = []

    def write(self, parts: Sequence[LogPart]) -> None:
        """Write parts, and hold the last ones."""
        self._held += map(self._readable, parts)
        if len(self._held) > HELD_PARTS:
            self._emit(HELD_PARTS)

    def _readable(self, part: LogPart) -> LogPart:
        found = parse_line(part.text) if LINE_START in part.text and part.ends else None
        if found is None:
            return part
        before, line = found
        self._on_line(line)
        return replace(part, text=readable_line(before, line))

    @property
    def unfinished(self) -> int:
        """How many parts are held that end in the middle of a line; 0 if the last one ends its line."""
        return len(self._held) if self._held and not self._held[-1].ends else 0

    def flush(self, *, is_end: bool = True) -> None:
        """Write what is held. If more follows, the last piece of a line is held: a secret may continue after it."""
        if self._held:
            self._emit(int(bool(self.unfinished) and not is_end))

    def note(self, note: str) -> None:
        """Write a line of the provider."""
        self.flush()
        self._write_lines([format_note(self._label, self._mask(note))])

    def _emit(self, hold: int) -> None:
        text, ready = text_of(self._held), len(self._held) - hold
        if (masked := self._mask(text)) == text:
            lines = [self._line(part.text.decode(errors="replace"), part.begins) for part in self._held[:ready]]
        else:
            # What is held does not begin within a secret, and another secret may begin in it.
            while (head := self._masked(self._held[:ready])) + self._masked(self._held[ready:]) != masked:
                ready -= 1
            lines = self._lines_of(head, self._held[0].begins) if ready else []
        del self._held[:ready]
        self._write_lines(lines)

    def _masked(self, parts: Sequence[LogPart]) -> str:
        return self._mask(text_of(parts))

    def _lines_of(self, text: str, begins: bool) -> list[str]:
        return [
            self._line(line[at : at + PART_BYTES_MAX], (begins or number > 0) and at == 0)
            for number, line in enumerate(text.removesuffix("\n").split("\n"))
            for at in range(0, max(len(line), 1), PART_BYTES_MAX)
        ]

    def _line(self, text: str, begins: bool) -> str:
        shown = to_printable(text.rstrip("\r"), in_log=True)
        return f"[{self._label}{'' if begins else ', continued'}] {shown}"


FAILURES_MAX: Final = 5
"""How many requests in a row may fail before the rest of a log is given up."""
BACKOFF_BASE_S: Final = 0.5
BACKOFF_CAP_S: Final = 10.0


class _LogShortened(ClusterError):  # noqa: N818 - a state of the log
    """The log is shorter than it was, because the kubelet has rotated its file."""

    def __init__(self) -> None:
        super().__init__("the kubelet has rotated the log while it was read")


FOLLOW_IDLE_TIMEOUT_S: Final = 300.0
"""A program that writes nothing for this long is asked about again, because the connection may be dead."""


async def read_log_chunks(
    client: Client,
    source: LogSource,
    query: LogQuery,
    *,
    position: LogPosition | None = None,
    on_other_file: Callable[[], None] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a log. After a broken connection the log is requested again, and what was read is skipped.

    The log of a container that has ended does not change, and that of a container that runs may only grow until the
    kubelet rotates it. A log that is followed outlives many connections, so it is requested again until it ends.

    :param position: Where an earlier reader has stopped. It needs `on_other_file`.
    :param on_other_file: Read the log by lines, and call this each time when it does not continue at the last line that
        was read, because the container was restarted or the kubelet has rotated the log: lines may be missing.

    Raises:
        ClusterError: the log cannot be read.
        _LogShortened: the log became shorter while it was read. This is not raised for a log that is read by lines.
    """
    query = replace(query, container=source.container)
    backoff = Backoff(client.clock, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
    resumed: _ByBytes | _ByLines = (
        _ByBytes(query) if on_other_file is None else _ByLines(query, on_other_file, position)
    )
    idle_timeout_s = FOLLOW_IDLE_TIMEOUT_S if query.follow else LOG_IDLE_TIMEOUT_S
    failures = 0
    while True:
        request = resumed.begin()
        try:
            opened = client.open_log(source.pod, source.namespace, request, idle_timeout_s=idle_timeout_s)
            async with opened as chunks:
                async for chunk in chunks:
                    if new := resumed.feed(chunk):
                        failures = 0
                        yield new
        except ClusterError as error:
            failures += 1
            may_succeed = error.transient or (isinstance(error, NotFound) and await pod_exists(client, source))
            if not may_succeed or (failures >= FAILURES_MAX and not query.follow):
                raise
            await client.clock.sleep(backoff.next(at_least_s=error.retry_after_s))
        else:
            if rest := resumed.end():
                yield rest
            return


class _ByBytes:
    """Skips as many bytes as were read before."""

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._read = self._to_skip = 0

    def begin(self) -> LogQuery:
        self._to_skip = self._read
        return self._query

    def feed(self, chunk: bytes) -> bytes:
        new = chunk[self._to_skip :] if self._to_skip else chunk
        self._to_skip = max(self._to_skip - len(chunk), 0)
        self._read += len(new)
        return new

    def end(self) -> bytes:
        if self._to_skip:
            raise _LogShortened
        return b""


class _ByLines:
    """Skips the lines that were read before, which the times of the lines show."""

    def __init__(self, query: LogQuery, on_other_file: Callable[[], None], position: LogPosition | None) -> None:
        self._query = replace(query, timestamps=True)
        self._on_other_file = on_other_file
        self._cursor = LogCursor(position)
        self._parser = LogParser(timestamps=True)
        self._has_noted = False

    def begin(self) -> LogQuery:
        self._parser = LogParser(timestamps=True)
        self._has_noted = False
        return replace(self._query, since_s=self._cursor.begin())

    def feed(self, chunk: bytes) -> bytes:
        return self._new(self._parser.feed(chunk))

    def end(self) -> bytes:
        return self._new(self._parser.end())

    def _new(self, parts: Sequence[LogPart]) -> bytes:
        new = self._cursor.new_parts(parts)
        if self._cursor.is_other_file and not self._has_noted:
            self._has_noted = True
            self._on_other_file()
        for part in new:
            self._cursor.delivered(part)
        return b"".join(part.text + b"\n" if part.ends else part.text for part in new)


async def read_last_parts(client: Client, source: LogSource, *, lines_max: int) -> list[LogPart]:
    """Return the last lines of a log, with their times, but at most `LAST_BYTES_MAX` bytes of them.

    Raises:
        ClusterError: the log cannot be read, or became shorter while it was read.
    """
    parser, parts, size = LogParser(timestamps=True), list[LogPart](), 0
    chunks = read_log_chunks(client, source, LogQuery(timestamps=True, tail_lines=lines_max))
    async with aclosing(chunks):
        async for chunk in chunks:
            parts += parser.feed(chunk)
            size += len(chunk)
            if size > LAST_BYTES_MAX:
                break
    return [*parts, *parser.end()]


async def pod_exists(client: Client, source: LogSource) -> bool:
    """Return whether the pod of a log exists, or may exist.

    A kubelet that has just started does not know its pods, and answers that the pod of a log does not exist.
    """
    try:
        await client.get(PODS, source.pod, source.namespace)
    except NotFound:
        return False
    except ClusterError:
        return True
    return True
