"""A hosts file that can be updated while other programs read it.

Programs may open the file at any time, so the file is never rewritten. A write either appends a line, or reuses the
space of a removed line. A line is removed by overwriting its first byte with `#`. The first byte of a new line in
reused space is written last, so a reader never sees a partial line.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["HostsFile"]


class HostsFile:
    """The lines of a hosts file by key, after a fixed header.

    :param write: Writes bytes at an offset of the file, as `os.pwrite` does.
    """

    def __init__(
        self, path: str, header: Iterable[str] = (), *, write: Callable[[int, bytes, int], int] = os.pwrite
    ) -> None:
        self.path = path
        self._write = write
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._spans: dict[str, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []
        self._size = 0
        self._append("".join(f"{line}\n" for line in header).encode())

    def update(self, changes: Mapping[str, str | None]) -> None:
        """Set the line of each key, or remove it if the line is None. Appended lines are one write."""
        appended: list[tuple[str, bytes]] = []
        for key, line in changes.items():
            self._remove_line(key)
            if line is not None and not self._reuse_space(key, line.encode()):
                appended.append((key, line.encode() + b"\n"))
        offset = self._size
        for key, raw in appended:
            self._spans[key] = (offset, len(raw) - 1)
            offset += len(raw)
        self._append(b"".join(raw for _, raw in appended))

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        self._write(self._fd, data, self._size)
        self._size += len(data)

    def _remove_line(self, key: str) -> None:
        span = self._spans.pop(key, None)
        if span is not None:
            self._write(self._fd, b"#", span[0])
            self._free.append(span)

    def _reuse_space(self, key: str, line: bytes) -> bool:
        for index, (offset, length) in enumerate(self._free):
            if length >= len(line):
                self._write(self._fd, line[1:].ljust(length - 1), offset + 1)
                self._write(self._fd, line[:1], offset)
                self._spans[key] = (offset, length)
                del self._free[index]
                return True
        return False
