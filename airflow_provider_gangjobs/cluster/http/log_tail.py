"""The end of a log, read in bounded memory.

A server cannot be asked for it: `limitBytes` counts from the start of what `tailLines` chose, so both together give
the first bytes of the last lines (kubelet, `cri-client/pkg/logs`). So the last lines are read whole, and the end of
them is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_provider_gangjobs.kube.text import ELLIPSIS

PART_BYTES_MIN: Final = 8 * 1024
"""The shortest part in which a container runtime stores a long line (conmon; containerd takes 16 KiB)."""
_CHARACTER_BYTES_MAX: Final = 4
_WORD_BYTES_MAX: Final = 64
"""A longer run without a space is cut in the middle."""


@dataclass(frozen=True)
class LogTail:
    """The last lines of a log, and what is missing before them."""

    text: str
    lines_read: int = 0
    """Lines that the server sent, with those that are left out."""
    lines_left_out: int = 0
    """How many of them, the first ones, are not in `text`."""
    bytes_left_out: int = 0
    """How much of the beginning of the first line of `text` is left out. Such a line begins with an ellipsis."""
    may_have_more: bool = False
    """The server may have lines before those that it sent."""


class TailBuffer:
    """Takes a log as it comes and keeps its end, at most `bytes_max` of it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._bytes = 0
        self._lines = 0
        self._line_bytes = 0
        self._last_line_bytes = 0
        self._longest_line_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Add what has come."""
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
        """Return the end. `tail_lines` is what the server was asked for; it counts each part of a long line."""
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
        end = _from_a_word(kept[1:])
        left_out = (self._line_bytes or self._last_line_bytes) - len(end)
        return LogTail(f"{ELLIPSIS}{_text(end)}", lines, lines - 1, left_out, may_have_more)


def _from_a_word(line: bytearray) -> bytearray:
    """The end of a line without the rest of a word, or of a character, with which it begins."""
    space = line.find(b" ", 0, _WORD_BYTES_MAX)
    if space >= 0:
        return line[space + 1 :]
    start = next((at for at, byte in enumerate(line[:_CHARACTER_BYTES_MAX]) if byte & 0xC0 != 0x80), 0)
    return line[start:]


def _text(raw: bytearray) -> str:
    return raw.decode(errors="replace")
