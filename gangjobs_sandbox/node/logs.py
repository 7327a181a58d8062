"""Reads the output of a container: the whole log, its last lines, the lines since a time, or the log as it grows.

`shim/output.py` describes the format of the file. As under a kubelet, only the current file is read, and not the file
before the last rotation.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

__all__ = ["LogOptions", "last_text", "read_log"]

_FOLLOW_INTERVAL_S = 0.1
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True)
class LogOptions:
    """The parameters of a log request. None means no limit."""

    follow: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


async def read_log(path: str, options: LogOptions, *, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the text of a log file in pieces. With `follow`, continue until `ended` returns true."""
    left = options.limit_bytes
    async for piece in _pieces(path, options, ended):
        if left is not None:
            piece = piece[:left]
            left -= len(piece)
        if piece:
            yield piece
        if left == 0:
            return


def last_text(path: str, *, lines_max: int, bytes_max: int) -> str:
    """Return the end of a log as text, for a termination message."""
    try:
        with open(path, "rb") as file:
            file.seek(_tail_offset(file, lines_max))
            text = b"".join(_Format(LogOptions()).apply(file.read()))
    except FileNotFoundError:
        return ""
    return text[-bytes_max:].decode(errors="replace")


async def _pieces(path: str, options: LogOptions, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    file = await _open_when_created(path, options, ended)
    if file is None:
        return
    with file:
        file.seek(_tail_offset(file, options.tail_lines))
        async for piece in _follow_file(file, options, ended):
            yield piece
        rotated = options.follow and _is_replaced(file, path)
    if rotated:
        rest = LogOptions(follow=True, since=options.since, timestamps=options.timestamps)
        async for piece in _pieces(path, rest, ended):
            yield piece


async def _follow_file(file: BinaryIO, options: LogOptions, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the rest of the file, and then what is appended while it is the current file."""
    rest = b""
    formatting = _Format(options)
    while True:
        # `ended` is called before the read, so the next round reads output that is written in between.
        is_last = not options.follow or ended() or _is_replaced(file, file.name)
        while data := file.read(_CHUNK_BYTES):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if piece := b"".join(formatting.apply(whole + newline)):
                yield piece
            await asyncio.sleep(0)
        if is_last:
            return
        await asyncio.sleep(_FOLLOW_INTERVAL_S)


async def _open_when_created(path: str, options: LogOptions, ended: Callable[[], bool]) -> BinaryIO | None:
    """Open the file. The file appears a moment after its container has started."""
    while True:
        is_last = not options.follow or ended()
        try:
            return open(path, "rb")  # noqa: ASYNC230 - local and small; closed by the caller
        except FileNotFoundError:
            if is_last:
                return None
        await asyncio.sleep(_FOLLOW_INTERVAL_S)


def _is_replaced(file: BinaryIO, path: str) -> bool:
    try:
        return os.stat(path).st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return True


def _tail_offset(file: BinaryIO, lines: int | None) -> int:
    """Return the offset of the last `lines` records. As under a kubelet, each part of a long line counts as a line."""
    if lines is None:
        return 0
    end = position = file.seek(0, os.SEEK_END)
    tail = b""
    while position > 0 and tail.count(b"\n") <= lines:
        step = min(_CHUNK_BYTES, position)
        position -= step
        file.seek(position)
        tail = file.read(step) + tail
    records = tail.split(b"\n")[:-1]
    if lines == 0 or not records:
        return end
    return position + sum(len(record) + 1 for record in records[:-lines])


class _Format:
    """Converts the records of a file to the format that the options ask for.

    As in a kubelet, only the first part of a long line has a timestamp. `since` selects single records, so the log may
    begin with the later parts of a line, without a timestamp.
    """

    def __init__(self, options: LogOptions) -> None:
        since = options.since
        self._since = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").encode() if since else b""
        self._timestamps = options.timestamps
        self._starts_line = True

    def apply(self, raw: bytes) -> Iterator[bytes]:
        """Yield the text of whole records."""
        for record in raw.split(b"\n")[:-1]:
            stamp, _, tag, text = record.split(b" ", 3)
            if stamp >= self._since:
                yield stamp + b" " + text if self._timestamps and self._starts_line else text
                if tag == b"F":
                    yield b"\n"
            self._starts_line = tag == b"F"
