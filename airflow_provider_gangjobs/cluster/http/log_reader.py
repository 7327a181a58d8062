"""Reads the streams of an API server: whole lines of a watch, the parts of a container's log, and the end of a log.

A log may contain any bytes and lines of any length. `LogParser` therefore returns *parts*: a line, or a piece of a line
that is longer than the limit.

A server returns a log from a time on, in whole seconds (`sinceTime`), and applies the time to each record of the log
file. So two responses for the same second have the same lines in the same order, as long as the file is the same. A
reader that resumes (`LogCursor`) therefore skips as many lines as the earlier reader has read since that second. Times
alone would not do: the container runtime stamps stdout and stderr separately, so times may be equal or slightly out of
order. If the first line is another one, the file was rotated or the container was restarted, and nothing is skipped.

A server cannot return the last bytes of a log: `limitBytes` counts from the start of the lines that `tailLines` selects
(kubelet, `cri-client/pkg/logs`). `TailBuffer` therefore reads the last lines whole and keeps their end.

A kubelet that has removed a log answers with the status 200 and a message without a line end (`GetContainerLogs` in
pkg/kubelet/kuberuntime/kuberuntime_container.go). `refuse_message` makes it an error.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import BadRequest
from airflow_provider_gangjobs.kube.text import ELLIPSIS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable


class LineTooLongError(ValueError):
    """A line exceeds the limit, so the stream cannot have the expected content."""


async def whole_lines(chunks: AsyncIterator[bytes], *, bytes_max: int) -> AsyncGenerator[bytes, None]:
    """Yield the same bytes in parts that each hold one or more whole lines, as many as have arrived.

    For readers that decode many lines at once. The last part may end without a line end.

    Raises:
        LineTooLongError: an unfinished line exceeds `bytes_max`.
    """
    rest = bytearray()
    async for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest += chunk
        else:
            lines = chunk if end == len(chunk) else chunk[:end]
            yield bytes(rest) + lines if rest else lines
            rest = bytearray(chunk[end:])
        if len(rest) > bytes_max:
            raise LineTooLongError(f"a line of more than {bytes_max} bytes")
    if rest:
        yield bytes(rest)


PART_BYTES_MAX: Final = 2**16
SECONDS_BACK: Final = 2
"""How many seconds before its last line a log is read again when it is resumed. Lines of stdout and stderr are out of
order by less than this."""
_STAMP_BYTES: Final = range(20, 36)


class LogPart(NamedTuple):
    """A line of a log, or a piece of a long line, without the line end."""

    text: bytes
    stamp: str = ""
    """The time of the line, as the server wrote it. Empty for further pieces of a line."""
    begins: bool = True
    ends: bool = True
    bytes_before: int = 0
    """How many bytes before `text` belong to this part and were read earlier."""


class LogParser:
    """Splits the chunks of a log into parts. Call `end` after the last chunk.

    :param timestamps: Whether each line begins with a time.
    """

    def __init__(self, *, timestamps: bool = False, bytes_max: int = PART_BYTES_MAX) -> None:
        self._timestamps = timestamps
        self._bytes_max = bytes_max
        self._rest = bytearray()
        self._begins = True

    def feed(self, chunk: bytes) -> list[LogPart]:
        """Return the parts that the chunk completes."""
        parts: list[LogPart] = []
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._rest += line
            self._cut_long_line(parts)
            parts.append(self._part(bytes(self._rest), ends=True))
            self._rest.clear()
        self._rest += rest
        self._cut_long_line(parts)
        return parts

    def end(self) -> list[LogPart]:
        """Return the last line if it has no line end."""
        if not self._rest and self._begins:
            return []
        return [self._part(bytes(self._rest), ends=False)]

    def _cut_long_line(self, parts: list[LogPart]) -> None:
        while len(self._rest) > self._bytes_max:
            cut = next((at for at in range(self._bytes_max, self._bytes_max - 4, -1) if _is_start(self._rest[at])), 0)
            cut = cut or self._bytes_max
            parts.append(self._part(bytes(self._rest[:cut]), ends=False))
            del self._rest[:cut]

    def _part(self, raw: bytes, *, ends: bool) -> LogPart:
        begins, self._begins = self._begins, ends
        stamp = ""
        if begins and self._timestamps:
            stamp, raw = _split_stamp(raw)
        return LogPart(raw, stamp, begins, ends)


def _is_start(byte: int) -> bool:
    """Return whether a byte begins a character of UTF-8."""
    return byte & 0xC0 != 0x80


def _split_stamp(raw: bytes) -> tuple[str, bytes]:
    stamp, _, text = raw.partition(b" ")
    if len(stamp) in _STAMP_BYTES and stamp[10:11] == b"T" and stamp[:4].isdigit():
        return stamp.decode("latin-1"), text
    return "", raw  # the rest of a line whose first record is older than `sinceTime`


class LogPosition(Struct, frozen=True):
    """How far a container's log was read."""

    since_s: int
    """Unix time, in whole seconds, from which the log is read again."""
    lines: int
    """How many lines since then were read."""
    first: str
    """The time of the first of these lines. It shows whether the log is still the same file."""
    bytes: int = 0
    """How many bytes of the line after these lines were read, if that line was longer than a part."""
    total: int = 0
    """How many bytes of the log were read in all."""

    def __str__(self) -> str:
        return f"{self.since_s},{self.lines},{self.bytes},{self.total},{self.first}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what `str` wrote. Return `None` for another text, so that the log is read from its beginning."""
        try:
            since_s, lines, part_bytes, total, first = text.split(",", 4)
            return cls(int(since_s), int(lines), first, int(part_bytes), int(total))
        except ValueError:
            return None


class PositionTracker:
    """Counts the parts of a log that were delivered, and returns the position after them.

    :param since_s: The time from which the log is read. `None` for the beginning of the log.
    """

    def __init__(self, total: int = 0, *, since_s: int | None = None) -> None:
        self.total = total
        """How many bytes were delivered, which does not include the parts that were skipped."""
        self._since_s = since_s
        self._seconds: dict[int, _Second] = {}
        self._newest_s = 0
        self._open: _Second | None = None
        self._bytes = 0
        self._ordinal = 0

    def add(self, part: LogPart) -> None:
        """Count a part. The lines of a log that begins in the middle of a line count from the next line."""
        if part.begins:
            self.begin_line(part.stamp)
        if part.ends:
            if self._open is not None:
                self._open.lines += 1
            self._open, self._bytes = None, 0
        else:
            self._bytes += len(part.text) + part.bytes_before

    def begin_line(self, stamp: str) -> None:
        """Note the time of the line to which the next parts belong."""
        self._open = self._second_of(stamp) if stamp else None
        self._bytes = 0

    @property
    def position(self) -> LogPosition | None:
        """The position after the last part; `None` before the first line."""
        if not self._seconds:
            return None
        # Not from the first second that was seen on: a line of the second before may come late.
        since_s = self._newest_s - SECONDS_BACK
        if self._since_s is not None:
            since_s = max(since_s, self._since_s)
        read = [second for at, second in self._seconds.items() if at >= since_s]
        first = min(read, key=lambda second: second.ordinal)
        return LogPosition(since_s, sum(second.lines for second in read), first.stamp, self._bytes, self.total)

    def _second_of(self, stamp: str) -> _Second:
        at = unix_second(stamp)
        second = self._seconds.get(at)
        if second is None:
            self._ordinal += 1
            second = self._seconds[at] = _Second(stamp, self._ordinal)
            self._newest_s = max(self._newest_s, at)
            for old in [old for old in self._seconds if old < self._newest_s - SECONDS_BACK]:
                if self._seconds[old] is not second:
                    del self._seconds[old]
        return second


class _Second(Struct):
    """The lines of one second: the first of them, its place among the first lines, and their number."""

    stamp: str
    ordinal: int
    lines: int = 0


class LogCursor:
    """Reads one log over several responses, and returns each part once.

    For each response: call `begin`, request the log since that time, pass the parts to `new_parts`, and call
    `delivered` for each part that it returns.

    :param position: Where an earlier reader stopped. `None` for the beginning of the log.
    """

    def __init__(self, position: LogPosition | None = None) -> None:
        self._reached = position
        self._tracker = _tracker_from(position)
        self._lines = self._bytes = 0
        self._has_begun = self._line_counts = False
        self.is_other_file = False
        """Whether the log of this response does not begin as it did before, so that nothing was left out."""

    @property
    def position(self) -> LogPosition | None:
        """The position after the last part that was delivered; `None` before the first line."""
        if self._lines or self._bytes or not self._has_begun:
            return self._reached
        return self._tracker.position or self._reached

    def begin(self) -> int | None:
        """Prepare for another response, and return the time for `LogQuery.since_s`."""
        self._reached = reached = self.position
        self._tracker = _tracker_from(reached)
        self._lines, self._bytes = (reached.lines, reached.bytes) if reached else (0, 0)
        self._has_begun = self._line_counts = self.is_other_file = False
        return reached.since_s if reached else None

    def new_parts(self, parts: Iterable[LogPart]) -> list[LogPart]:
        """Return the parts that no earlier response had."""
        return [new for part in parts if (new := self._new_part(part)) is not None]

    def delivered(self, part: LogPart) -> None:
        """Count a part that `new_parts` has returned."""
        self._tracker.total += len(part.text) + part.ends
        self._tracker.add(part)

    def _new_part(self, part: LogPart) -> LogPart | None:
        if not self._has_begun and self._reached is not None and not self._begin_at(part):
            return None
        self._has_begun = True
        if part.begins:
            self._line_counts = bool(part.stamp)
        if self._lines:
            self._lines -= part.ends and self._line_counts
            self._tracker.add(part)
            return None
        if self._bytes:
            return self._new_end(part)
        return part

    def _begin_at(self, part: LogPart) -> bool:
        """Return false for the end of a line that began before the time of the request, and that was read."""
        if not part.begins or not part.stamp:
            return False
        assert self._reached is not None, "the caller has checked that there is a position"
        if part.stamp != self._reached.first:
            self.is_other_file = True
            self._lines = self._bytes = 0
        return True

    def _new_end(self, part: LogPart) -> LogPart | None:
        """Return what is new in the next part of a line that was read in part."""
        known = min(self._bytes, len(part.text))
        self._bytes = 0 if part.ends else self._bytes - known
        if known == len(part.text) and not part.ends:
            self._tracker.add(part)
            return None
        if part.begins:
            self._tracker.begin_line(part.stamp)  # the part that is returned begins within the line
        return part._replace(text=part.text[known:], begins=part.begins and not known, bytes_before=known)


def _tracker_from(position: LogPosition | None) -> PositionTracker:
    return PositionTracker(position.total, since_s=position.since_s) if position else PositionTracker()


@lru_cache(maxsize=1024)
def _unix_second(moment: str, zone: str) -> int:
    return int(datetime.fromisoformat(f"{moment}{zone}").timestamp())


def unix_second(stamp: str) -> int:
    """Return the Unix time of a log line in whole seconds. The kubelet writes times with any zone and precision."""
    fraction_end = 19
    while fraction_end < len(stamp) and stamp[fraction_end] in ".0123456789":
        fraction_end += 1
    try:
        return _unix_second(stamp[:19], stamp[fraction_end:])
    except ValueError:
        return 0


PART_BYTES_MIN: Final = 8 * 1024
"""The shortest part in which a container runtime stores a long line (conmon; containerd takes 16 KiB)."""
_CHARACTER_BYTES_MAX: Final = 4
_WORD_BYTES_MAX: Final = 64
"""A longer word is cut in the middle."""


class LogTail(Struct, frozen=True):
    """The last lines of a log, and how much is missing before them."""

    text: str
    lines_read: int = 0
    """The lines that the server sent, including the lines that are not in `text`."""
    lines_left_out: int = 0
    """How many of these lines, from the first one, are not in `text`."""
    bytes_left_out: int = 0
    """How many bytes are missing at the start of the first line of `text`. Such a line begins with an ellipsis."""
    may_have_more: bool = False
    """True if the server may have lines before the lines that it sent."""


class TailBuffer:
    """Receives a log in chunks and keeps its last `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._bytes = 0
        self._lines = 0
        self._line_bytes = 0
        self._last_line_bytes = 0
        self._longest_line_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Add the next chunk of the log."""
        self._bytes += len(chunk)
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._last_line_bytes = self._line_bytes + len(end) + 1
            self._longest_line_bytes = max(self._longest_line_bytes, self._last_line_bytes)
            self._line_bytes = 0
        self._lines += len(ends)
        self._line_bytes += len(rest)
        self._kept += chunk
        # One byte more than is shown tells whether the cut is between two lines.
        surplus = len(self._kept) - self._bytes_max - 1
        if surplus > self._bytes_max:
            del self._kept[:surplus]

    def tail(self, *, tail_lines: int | None = None) -> LogTail:
        """Return the end of the log.

        :param tail_lines: The `tailLines` of the request. The server counts each stored part of a long line as a line.
        """
        lines = self._lines + bool(self._line_bytes)
        longest = max(self._longest_line_bytes, self._line_bytes)
        may_have_more = tail_lines is not None and (lines >= tail_lines or longest >= PART_BYTES_MIN)
        if self._bytes <= self._bytes_max:
            return LogTail(_text(self._kept), lines, may_have_more=may_have_more)
        kept = self._kept[-self._bytes_max - 1 :]
        start = kept.find(b"\n") + 1
        if 0 < start < len(kept):
            shown = kept[start:]
            shown_lines = shown.count(b"\n") + (not shown.endswith(b"\n"))
            return LogTail(_text(shown), lines, lines - shown_lines, may_have_more=may_have_more)
        end = _skip_partial_word(kept[1:])
        left_out = (self._line_bytes or self._last_line_bytes) - len(end)
        return LogTail(f"{ELLIPSIS}{_text(end)}", lines, lines - 1, left_out, may_have_more)


def _skip_partial_word(line: bytearray) -> bytearray:
    """Return the end of a line without the partial word or character at its start."""
    space = line.find(b" ", 0, _WORD_BYTES_MAX)
    if space >= 0:
        return line[space + 1 :]
    start = next((at for at, byte in enumerate(line[:_CHARACTER_BYTES_MAX]) if byte & 0xC0 != 0x80), 0)
    return line[start:]


def _text(raw: bytearray) -> str:
    return raw.decode(errors="replace")


_BEGINNING: Final = b"unable to retrieve container logs for "
_MESSAGE: Final = re.compile(_BEGINNING + rb"[a-z0-9.-]+://[0-9a-f]*")
_BYTES_MAX: Final = 256


async def refuse_message(chunks: AsyncIterator[bytes], request: str) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a log.

    Raises:
        BadRequest: the chunks are the kubelet's message. The kubelet has no log.
    """
    held = b""
    is_decided = False
    async for chunk in chunks:
        if is_decided:
            yield chunk
            continue
        held += chunk
        is_decided = not _may_be_message(held)
        if is_decided:
            yield held
    if not is_decided and held:
        check_not_message(held, request)
        yield held


def check_not_message(log: bytes, request: str) -> None:
    """Check a whole log.

    Raises:
        BadRequest: the log is the kubelet's message. The kubelet has no log.
    """
    if len(log) <= _BYTES_MAX and _MESSAGE.fullmatch(log):
        raise BadRequest(400, request=request, message=f"the kubelet has removed the log: {log.decode()}")


def _may_be_message(log: bytes) -> bool:
    """Return whether the beginning of a log may be the beginning of the message."""
    return len(log) <= _BYTES_MAX and b"\n" not in log and log[: len(_BEGINNING)] == _BEGINNING[: len(log)]
