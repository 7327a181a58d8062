"""Reads the streams of an API server: whole lines of a watch, the parts of a container's log, and the end of a log.

A log may contain any bytes and lines of any length. `LogParser` therefore returns *parts*: a line, or a piece of a line
that is longer than the limit.

A server returns a log from a time on, in whole seconds (`sinceTime`). A reader that resumes (`LogCursor`) begins at the
time of the last line that was read, and skips the earlier lines and as many lines of exactly that time as were read:
containerd reads the clock for each line, but CRI-O reads it once for all lines that it takes from the pipe at once
(`write_k8s_log` in conmon). If no line has that time, the file was rotated or the container was restarted, and lines
may be missing. A line that was stored after the last line that was read, with an earlier time, is lost: stdout and
stderr may be slightly out of order.

A server cannot return the last bytes of a log: `limitBytes` counts from the start of the lines that `tailLines` selects
(kubelet, `cri-client/pkg/logs`). So the last lines are read whole, and `LastBytes` keeps their end.

A kubelet that has removed a log answers with the status 200 and a message without a line end (`GetContainerLogs` in
pkg/kubelet/kuberuntime/kuberuntime_container.go). `refuse_message` makes it an error.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import BadRequest, UnexpectedReply
from airflow_provider_gangjobs.kube.text import ELLIPSIS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable


async def whole_lines(chunks: AsyncIterator[bytes], request: str, *, bytes_max: int) -> AsyncGenerator[bytes, None]:
    """Yield the same bytes in parts that each hold one or more whole lines, as many as have arrived.

    For readers that decode many lines at once. The last part may end without a line end.

    Raises:
        UnexpectedReply: an unfinished line exceeds `bytes_max`, so the stream is no watch.
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
            raise UnexpectedReply(200, request=request, message=f"a line of more than {bytes_max} bytes")
    if rest:
        yield bytes(rest)


PART_BYTES_MAX: Final = 2**16
_SECOND_NS: Final = 10**9
_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class LogPart(Struct, frozen=True):
    """A line of a log, or a piece of a long line, without the line end."""

    text: bytes
    time_ns: int = 0
    """The time of the line, as Unix time in nanoseconds; 0 for further pieces of a line."""
    begins: bool = True
    ends: bool = True


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
        return [self._part(bytes(self._rest), ends=False)] if self._rest else []

    def _cut_long_line(self, parts: list[LogPart]) -> None:
        while len(self._rest) > self._bytes_max:
            starts = (at for at in range(self._bytes_max, self._bytes_max - 4, -1) if _is_start(self._rest[at]))
            cut = next(starts, self._bytes_max)
            parts.append(self._part(bytes(self._rest[:cut]), ends=False))
            del self._rest[:cut]

    def _part(self, raw: bytes, *, ends: bool) -> LogPart:
        begins, self._begins = self._begins, ends
        time_ns = 0
        if begins and self._timestamps:
            stamp, _, text = raw.partition(b" ")
            with suppress(ValueError):  # the rest of a line whose first record is older than `sinceTime` has no time
                time_ns, raw = read_time(stamp), text
        return LogPart(raw, time_ns, begins, ends)


def _is_start(byte: int) -> bool:
    return byte & 0xC0 != 0x80


@lru_cache(maxsize=1024)
def _unix_second(moment: bytes, zone: bytes) -> int:
    return int(datetime.fromisoformat((moment + zone).decode()).timestamp())


def read_time(text: bytes) -> int:
    """Return the Unix time of a log line in nanoseconds. The kubelet writes times with any zone and precision.

    Raises:
        ValueError: the text is no time.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time")
    moment, fraction, zone = match.groups(b"")
    return _unix_second(moment, zone) * _SECOND_NS + int(fraction.ljust(9, b"0"))


class LogPosition(Struct, frozen=True):
    """How far a container's log was read."""

    time_ns: int
    """The time of the newest line that was read, as Unix time in nanoseconds."""
    lines: int = 1
    """How many lines of exactly that time were read."""
    total: int = 0
    """How many bytes of the log were read in all."""
    pieces: int = 0
    """How many pieces of the last line of that time were read; 0 if the line was read to its end."""

    def __str__(self) -> str:
        seconds, nanoseconds = divmod(self.time_ns, _SECOND_NS)
        moment = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
        return f"{moment},{self.lines},{self.total}{f',{self.pieces}' if self.pieces else ''}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what `str` wrote. Return `None` for another text, so that the log is read from its beginning."""
        try:
            moment, lines, total, *rest = text.split(",")
            (pieces,) = rest or ("0",)
            return cls(read_time(moment.encode()), int(lines), int(total), int(pieces))
        except ValueError:
            return None


_BEGINNING_OF_LOG: Final = LogPosition(0, lines=0)


class LogCursor:
    """Reads one log over several responses, and returns each line once.

    For each response: call `begin`, request the log since that time, pass the parts to `new_parts`, and call
    `delivered` for each part that it returns. A part that a response has cut is returned whole by the next one.

    :param position: Where an earlier reader stopped. `None` for the beginning of the log.
    """

    def __init__(self, position: LogPosition | None = None) -> None:
        self.position = position
        """The position after the last part that was delivered; `None` before the first part."""
        self.is_other_file = False
        """Whether the log of this response does not have the line of the position, so that lines may be missing."""
        self._skips = False
        self._found = self._newest_ns = self._lines = self._total = self._pieces = self._to_skip = 0

    def begin(self) -> int | None:
        """Prepare for another response, and return the time for `LogQuery.since_s`."""
        self._skips, self.is_other_file = self.position is not None, False
        start = self.position or _BEGINNING_OF_LOG
        self._found, self._newest_ns, self._lines, self._total = 0, start.time_ns, start.lines, start.total
        self._pieces = self._to_skip = start.pieces
        return start.time_ns // _SECOND_NS if self.position is not None else None

    def new_parts(self, parts: Iterable[LogPart]) -> list[LogPart]:
        """Return the parts from the first line on that is after the position."""
        return [part for part in parts if self._is_new(part)]

    def _is_new(self, part: LogPart) -> bool:
        if self._skips and part.time_ns:
            self._found += part.time_ns == self._newest_ns
            self._skips = part.time_ns <= self._newest_ns and self._found <= self._lines
            self.is_other_file = not (self._skips or self._found)
        if self._skips and self._pieces and self._found == self._lines:
            self._skips = self._to_skip > 0
            self._to_skip -= 1
        return not self._skips

    def delivered(self, part: LogPart) -> None:
        """Count a part that `new_parts` has returned."""
        self._total += len(part.text) + part.ends
        if part.time_ns >= self._newest_ns and part.time_ns:
            self._lines = self._lines + 1 if part.time_ns == self._newest_ns else 1
            self._newest_ns = part.time_ns
        self._pieces = 0 if part.ends else self._pieces + 1
        if self._newest_ns:
            self.position = LogPosition(self._newest_ns, self._lines, self._total, self._pieces)


PART_BYTES_MIN: Final = 8 * 1024
"""The shortest part in which a container runtime stores a long line (conmon; containerd takes 16 KiB)."""
_CHARACTER_BYTES_MAX: Final = 4


class LogTail(Struct, frozen=True):
    """The last lines of a log."""

    text: str
    """If it begins in the middle of a line, it begins with an ellipsis."""
    is_cut: bool = False
    """Whether the log has, or may have, more before them."""


class LastBytes:
    """Receives a log in chunks and keeps its last `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self.bytes = self.lines = 0
        """How many bytes and line ends the log has."""

    def feed(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        self.lines += chunk.count(b"\n")
        self._kept += chunk
        # One byte more than is shown tells whether the cut is between two lines.
        if len(self._kept) > 2 * self._bytes_max:
            del self._kept[: -self._bytes_max - 1]

    def take(self) -> tuple[bytes, bool]:
        """Return the end of the log, and whether it begins in the middle of a line, which it does only if it has to."""
        if self.bytes <= self._bytes_max:
            return bytes(self._kept), False
        kept = bytes(self._kept[-self._bytes_max - 1 :])
        start = kept.find(b"\n") + 1
        is_in_line = not 0 < start < len(kept)
        return kept[1 if is_in_line else start :], is_in_line


def tail_of(end: LastBytes, tail_lines: int) -> LogTail:
    """Return the end of a log of which the server has sent the last lines.

    :param tail_lines: The `tailLines` of the request. The server counts each stored part of a long line as a line.
    """
    kept, is_in_line = end.take()
    parts_max = end.lines + (not kept.endswith(b"\n")) + end.bytes // PART_BYTES_MIN
    is_cut = end.bytes > len(kept) or parts_max >= tail_lines
    text = (skip_partial_character(kept) if is_in_line else kept).decode(errors="replace")
    return LogTail(f"{ELLIPSIS}{text}" if is_in_line else text, is_cut)


def skip_partial_character(text: bytes) -> bytes:
    """Return the text without the rest of a character at its start."""
    start = next((at for at, byte in enumerate(text[:_CHARACTER_BYTES_MAX]) if _is_start(byte)), 0)
    return text[start:]


_BEGINNING: Final = b"unable to retrieve container logs for "
_MESSAGE: Final = re.compile(_BEGINNING + rb"[a-z0-9.-]+://[0-9a-f]*")
_BYTES_MAX: Final = 256


async def refuse_message(chunks: AsyncIterator[bytes], request: str) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a log.

    Raises:
        BadRequest: the chunks are the kubelet's message. The kubelet has no log.
    """
    held = b""
    async for chunk in chunks:
        held += chunk
        if not _may_be_message(held):
            break
    else:
        check_not_message(held, request)
    if held:
        yield held
    async for chunk in chunks:
        yield chunk


def check_not_message(log: bytes, request: str) -> None:
    """Check a whole log.

    Raises:
        BadRequest: the log is the kubelet's message. The kubelet has no log.
    """
    if len(log) <= _BYTES_MAX and _MESSAGE.fullmatch(log):
        raise BadRequest(400, request=request, message=f"the kubelet has removed the log: {log.decode()}")


def _may_be_message(log: bytes) -> bool:
    return len(log) <= _BYTES_MAX and b"\n" not in log and log[: len(_BEGINNING)] == _BEGINNING[: len(log)]
