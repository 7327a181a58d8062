"""A hosts file that changes under its readers.

Readers may open it at any time, so it is never rewritten: a line is added by one write at the end or
into the place of a dead one, and dies when its first byte becomes `#`. The byte that makes a line live
is always written last.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HostsFile"]


class HostsFile:
    """Lines by key, on top of a fixed header."""

    def __init__(self, path: str, header: Iterable[str] = ()) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._places: dict[str, tuple[int, int]] = {}
        self._dead: list[tuple[int, int]] = []
        self._size = 0
        self._append("".join(f"{line}\n" for line in header).encode())

    def update(self, changes: Mapping[str, str | None]) -> None:
        """Set or, with None, remove the line of each key; new lines go in with one write."""
        fresh: list[tuple[str, bytes]] = []
        for key, line in changes.items():
            self._kill(key)
            if line is not None and not self._reuse(key, line.encode()):
                fresh.append((key, line.encode() + b"\n"))
        at = self._size
        for key, raw in fresh:
            self._places[key] = (at, len(raw) - 1)
            at += len(raw)
        self._append(b"".join(raw for _, raw in fresh))

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        os.pwrite(self._fd, data, self._size)
        self._size += len(data)

    def _kill(self, key: str) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            os.pwrite(self._fd, b"#", place[0])
            self._dead.append(place)

    def _reuse(self, key: str, line: bytes) -> bool:
        for index, (at, length) in enumerate(self._dead):
            if length >= len(line):
                os.pwrite(self._fd, line[1:].ljust(length - 1), at + 1)
                os.pwrite(self._fd, line[:1], at)
                self._places[key] = (at, length)
                del self._dead[index]
                return True
        return False
