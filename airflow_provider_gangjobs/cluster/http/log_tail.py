"""Reads the end of a log in bounded memory.

A server cannot return the last bytes of a log: `limitBytes` counts from the start of the lines that `tailLines`
selects, so both parameters together return the first bytes of the last lines (kubelet, `cri-client/pkg/logs`).
Therefore the client reads the last lines whole and keeps their end.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from airflow_provider_gangjobs.kube.text import ELLIPSIS

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
