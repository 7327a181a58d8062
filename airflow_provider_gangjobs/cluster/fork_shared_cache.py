"""What the processes that one process has forked have read of clusters, for as long as it counts.

Each part of a task is a process of its own, so what it discovers is lost with it, and each would ask the API server
again. `create` maps memory before the fork, which all forked processes share. There is no file, no connection and no
lock: a table has a checksum, a table that does not fit its checksum is empty, and of two processes that write at once
one loses its entry. An entry that is lost is read from the API server again. Without `create`, nothing is kept.

The keys of `ClusterConfig` are equal in all processes that were forked after this package was imported.
"""

from __future__ import annotations

import mmap
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")

SIZE_BYTES: Final = 2**18
"""Some hundred clusters: what discovery keeps of one is about a kilobyte."""
_NUMBER_BYTES: Final = 4


class _Entry(NamedTuple):
    expires_at: float
    value: bytes


_memory: mmap.mmap | None = None


def create() -> None:
    """Share a cache with all processes that this process forks from now on. Safe to repeat."""
    global _memory
    if _memory is None:
        _memory = mmap.mmap(-1, SIZE_BYTES)


def load(key: Hashable, kind: type[T], now: float) -> tuple[T, float] | None:
    """Return what a process has kept, and when it expires. `None` if there is nothing.

    :param now: `time.monotonic()`, which all processes of a machine share.
    """
    entry = _read().get(repr(key))
    if entry is None or entry.expires_at <= now:
        return None
    try:
        return msgspec.msgpack.decode(entry.value, type=kind), entry.expires_at
    except msgspec.MsgspecError:
        return None


def keep(key: Hashable, value: Any, now: float, expires_at: float) -> None:
    """Keep a value until it expires. If there is no room, all other values are dropped."""
    if _memory is None or expires_at <= now:
        return
    entry = _Entry(expires_at, msgspec.msgpack.encode(value))
    entries = {name: old for name, old in _read().items() if old.expires_at > now} | {repr(key): entry}
    if not _write(entries):
        _write({repr(key): entry})


def _read() -> dict[str, _Entry]:
    if _memory is None:
        return {}
    size, checksum = (_number(_memory, at) for at in (0, _NUMBER_BYTES))
    start = 2 * _NUMBER_BYTES
    data = _memory[start : start + size]
    if not size or zlib.crc32(data) != checksum:
        return {}
    return msgspec.msgpack.decode(data, type=dict[str, _Entry])


def _write(entries: dict[str, _Entry]) -> bool:
    assert _memory is not None, "the caller has checked this"
    data = msgspec.msgpack.encode(entries)
    head = b"".join(number.to_bytes(_NUMBER_BYTES) for number in (len(data), zlib.crc32(data)))
    if len(head) + len(data) > SIZE_BYTES:
        return False
    _memory[: len(head) + len(data)] = head + data
    return True


def _number(memory: mmap.mmap, at: int) -> int:
    return int.from_bytes(memory[at : at + _NUMBER_BYTES])
