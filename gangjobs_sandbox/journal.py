"""The store on disk: a snapshot, and an append-only log of the changes since.

Each change is one line, written by one `write` to a file opened for appending, before any client sees the change. A
killed process therefore loses no change that was answered. A power failure may lose changes, because nothing is synced.
An incomplete last line belongs to a change that was never answered, and is truncated. A change that cannot be written,
for example because the disk is full, is refused and leaves nothing behind.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["CorruptJournalError", "Journal", "Record", "UnwritableJournalError"]

log = logging.getLogger(__name__)

SNAPSHOT = "snapshot.jsonl"
LOG = "log.jsonl"
LOG_BYTES_MAX = 64 * 1024 * 1024
"""The size of the log above which a new snapshot replaces it. Reading a log of this size takes about a second."""


class CorruptJournalError(Exception):
    """A file of the data directory cannot be read."""

    def __init__(self, path: Path, line: int) -> None:
        super().__init__(f"{path} is damaged at line {line}. Remove the folder {path.parent} to start empty.")
        self.path = path
        self.line = line


class UnwritableJournalError(Exception):
    """A change cannot be written and was not made. It can be retried when the disk has room."""

    def __init__(self, directory: Path, error: OSError) -> None:
        super().__init__(f"{directory} cannot be written: {error.strerror}. Changes are refused until it is writable.")
        self.directory = directory


class Record(NamedTuple):
    """One change: the object from this revision on, or None if the object was deleted."""

    revision: int
    resource: str
    namespace: str
    name: str
    obj: Any
    """A dict when read; a dict or ready-made JSON (`msgspec.Raw`) when written."""


class Journal:
    """The files in one data directory. A lock prevents a second owner."""

    def __init__(self, directory: Path, *, log_bytes_max: int = LOG_BYTES_MAX) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory = directory
        self.log_bytes_max = log_bytes_max
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(self._lock)
            raise RuntimeError(f"{directory} is in use by another sandbox. Stop it, or choose another folder.") from exc
        self._log = os.open(directory / LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._log_bytes = os.fstat(self._log).st_size
        self._compact_at = log_bytes_max

    def load(self) -> Iterator[Record]:
        """Yield the records of the snapshot, and then the newer records of the log, oldest first.

        Raises:
            CorruptJournalError: a line cannot be read and is not an incomplete last line.
        """
        base = 0
        for record in self._read(SNAPSHOT):
            base = max(base, record.revision)
            yield record
        # After a crash between writing the snapshot and truncating the log, the log repeats records of the snapshot.
        for record in self._read(LOG):
            if record.revision > base:
                yield record

    def append(self, record: Record) -> None:
        """Append one change to the log.

        Raises:
            UnwritableJournalError: the change cannot be written. The file is as before.
        """
        line = msgspec.json.encode(record) + b"\n"
        try:
            if os.write(self._log, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # only a full disk causes a partial write
        except OSError as exc:
            os.ftruncate(self._log, self._log_bytes)
            raise UnwritableJournalError(self.directory, exc) from exc
        self._log_bytes += len(line)

    @property
    def is_long(self) -> bool:
        """Whether the log is long enough to call `compact`."""
        return self._log_bytes > self._compact_at

    def compact(self, revision: int, records: Iterable[Record]) -> None:
        """Replace snapshot and log by these records, the state at this revision. An error leaves both as they are."""
        temporary = self.directory / f"{SNAPSHOT}.new"
        try:
            with temporary.open("wb") as file:
                for record in records:
                    file.write(msgspec.json.encode(record) + b"\n")
                # A record without a resource stores the revision, because the newest objects may have been deleted.
                file.write(msgspec.json.encode(Record(revision, "", "", "", None)) + b"\n")
            temporary.replace(self.directory / SNAPSHOT)
        except OSError as exc:
            log.warning(
                "%s cannot be written: %s. The log keeps growing until a later attempt succeeds.",
                temporary,
                exc.strerror,
            )
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._compact_at = self._log_bytes + self.log_bytes_max
            return
        os.ftruncate(self._log, 0)
        self._log_bytes, self._compact_at = 0, self.log_bytes_max

    def close(self) -> None:
        """Release the data directory. Safe to repeat."""
        for descriptor in (self._log, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._log = self._lock = -1

    def _read(self, name: str) -> Iterator[Record]:
        path = self.directory / name
        if not path.exists():
            return
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    os.truncate(path, offset)
                    self._log_bytes = offset
                    return
                try:
                    yield msgspec.json.decode(line, type=Record)
                except msgspec.DecodeError as exc:
                    raise CorruptJournalError(path, number) from exc
                offset += len(line)
