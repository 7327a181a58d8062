"""Passes on a log of any size within a limit: its beginning, what was left out, and its end.

The beginning is passed on as it arrives, and the end is kept in memory until the log ends. The end is what people need:
it holds the exception of a program that failed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.cluster.http.log_parser import LogParser, LogPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

END_BYTES_MAX: Final = 4 * 2**20
"""The most that is kept in memory of one log."""
PARTS_PER_WRITE: Final = 256
LAST_PARTS: Final = 10
_CHARACTER_BYTES_MAX: Final = 4


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
        self._end: _EndBuffer | None = None
        self._written_bytes = 0
        self.lines = 0
        """How many lines the log had so far. A last line without a line end counts."""
        self.bytes = 0
        self.last_parts: deque[LogPart] = deque(maxlen=LAST_PARTS)
        """The last parts that were written."""
        self._is_in_line = False

    @property
    def written_bytes(self) -> int:
        """How many bytes of the log were written so far."""
        return self._written_bytes

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
        for at in range(0, len(parts), PARTS_PER_WRITE):
            some = parts[at : at + PARTS_PER_WRITE]
            self._write(some)
            if self._written_bytes >= self._head_bytes:
                self._end = _EndBuffer(self._end_bytes)
                rest = parts[at + PARTS_PER_WRITE :] + self._parser.end()
                self._end.feed(b"".join(part.text + b"\n" if part.ends else part.text for part in rest))
                return

    def end(self) -> None:
        """Write the end of the log."""
        self.lines += self._is_in_line
        if self._end is None:
            self._write(self._parser.end())
            return
        omission, text = self._end.take()
        if omission is not None:
            self._omit(omission)
        parser = LogParser()
        self._write([*parser.feed(text), *parser.end()])

    def _write(self, parts: Sequence[LogPart]) -> None:
        if not parts:
            return
        self._written_bytes += sum(len(part.text) + part.ends for part in parts)
        self.last_parts.extend(parts[-LAST_PARTS:])
        for at in range(0, len(parts), PARTS_PER_WRITE):
            self._write_parts(parts[at : at + PARTS_PER_WRITE])


class _EndBuffer:
    """Keeps the last bytes of what it is fed with, from the beginning of a line if possible."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._bytes = 0
        self._lines = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        self._lines += chunk.count(b"\n")
        self._kept += chunk
        # One byte more than is needed tells whether the cut is between two lines.
        if len(self._kept) > 2 * self._bytes_max:
            del self._kept[: -self._bytes_max - 1]

    def take(self) -> tuple[Omission | None, bytes]:
        """Return what was left out and the rest."""
        if self._bytes <= self._bytes_max:
            return None, bytes(self._kept)
        kept = self._kept[-self._bytes_max - 1 :]
        start = kept.find(b"\n") + 1
        is_in_line = not 0 < start < len(kept)
        if is_in_line:
            start = next((at for at in range(1, 1 + _CHARACTER_BYTES_MAX) if kept[at] & 0xC0 != 0x80), 1)
        text = bytes(kept[start:])
        return Omission(self._lines - text.count(b"\n"), self._bytes - len(text), is_in_line), text
