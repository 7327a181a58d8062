"""Writes the output of a container to one file, line by line, in the log format of the container runtime interface.

A line is `<RFC 3339 time with nanoseconds> <stdout|stderr> <F|P> <text>`; P marks a part of a line that is longer than
`LINE_BYTES_MAX`, and text without a line end at the end of the output. As in containerd, each line and part has a time
of its own, and a carriage return before the line end is left out. A file that exceeds its limit is renamed to
`<path>.1`, which replaces the previous one, so a container uses at most twice the limit on disk.
"""

import os
import time

LINE_BYTES_MAX = 16 * 1024
"""Longer lines are split, as container runtimes do."""


class Output:
    """The log file of one container."""

    def __init__(self, path: str, *, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size = os.fstat(self._file.fileno()).st_size
        self._rests: dict[str, bytes] = {}

    def feed(self, stream: str, data: bytes) -> None:
        """Write the completed lines, and keep the rest until more data arrives."""
        *lines, rest = (self._rests.pop(stream, b"") + data).split(b"\n")
        records = [record for line in lines for record in _records(stream, line)]
        while len(rest) > LINE_BYTES_MAX:
            records.append(_record(stream, b"P", rest[:LINE_BYTES_MAX]))
            rest = rest[LINE_BYTES_MAX:]
        if rest:
            self._rests[stream] = rest
        self._write(b"".join(records))

    def close(self) -> None:
        """Write the remaining text without a line end, and close the file."""
        self._write(b"".join(_record(stream, b"P", rest) for stream, rest in self._rests.items()))
        self._rests.clear()
        self._file.close()

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._size > 0 and self._size + len(data) > self._bytes_max:
            self._rotate()
        self._file.write(data)
        self._size += len(data)

    def _rotate(self) -> None:
        self._file.close()
        os.replace(self._path, f"{self._path}.1")
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size = 0


def _records(stream: str, line: bytes) -> list[bytes]:
    line = line.removesuffix(b"\r")
    parts = [line[at : at + LINE_BYTES_MAX] for at in range(0, len(line), LINE_BYTES_MAX)] or [b""]
    return [*(_record(stream, b"P", part) for part in parts[:-1]), _record(stream, b"F", parts[-1])]


def _record(stream: str, tag: bytes, text: bytes) -> bytes:
    return b"%s %s %s %s\n" % (_stamp(), stream.encode(), tag, text)


def _stamp() -> bytes:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z".encode()
