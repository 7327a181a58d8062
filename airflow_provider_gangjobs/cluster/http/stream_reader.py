"""Reads the body of a watch, and fails when nothing arrives for too long.

An API server sends each event of a watch in a TLS record of its own. `read_batches` leaves the events of a burst in the
buffer of the kernel for a moment and reads them together. This saves a quarter of the CPU of a harvest
(docs/benchmarks.md). `read_chunks` is the plain way.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import aiohttp

PAUSE_S: Final = 0.02
"""The pause between two batches at the start of a burst. Chunks that are further apart are no burst."""
PAUSE_MAX_S: Final = 0.05
PAUSE_PER_BURST_SECOND: Final = 1 / 200
"""The pause grows with the length of the burst, to 50 ms after ten seconds: after a long burst, it matters less that
the last events are read a moment later. This saves a quarter of the CPU of a harvest that takes a minute."""
BURST_AFTER_CHUNKS: Final = 4
"""A burst begins after this many chunks in a row, each within `PAUSE_S` of the previous chunk."""


class StreamReader(Protocol):
    """Yields the body of a response in chunks: `read_batches` or `read_chunks`.

    Raises:
        TimeoutError: nothing arrived for `idle_timeout_s`.
        aiohttp.ClientError: the connection broke.
    """

    def __call__(self, response: aiohttp.ClientResponse, *, idle_timeout_s: float) -> AsyncIterator[bytes]: ...


async def read_chunks(response: aiohttp.ClientResponse, *, idle_timeout_s: float) -> AsyncIterator[bytes]:
    """Yield each chunk as it arrives. See `StreamReader`."""
    with _IdleTimeout(response, idle_timeout_s) as reader:
        while chunk := await reader.read():
            yield chunk


async def read_batches(response: aiohttp.ClientResponse, *, idle_timeout_s: float) -> AsyncIterator[bytes]:
    """Yield each chunk as it arrives, and in a burst one chunk after each pause. See `StreamReader`."""
    now_s = asyncio.get_running_loop().time
    chunks_in_a_row = 0
    read_at = burst_began_at = now_s()
    with _IdleTimeout(response, idle_timeout_s) as reader:
        while chunk := await reader.read():
            yield chunk
            now = now_s()
            if now - read_at >= PAUSE_S:
                chunks_in_a_row, burst_began_at = 0, now
            else:
                chunks_in_a_row += 1
            connection = response.connection  # None once the body has ended
            if chunks_in_a_row >= BURST_AFTER_CHUNKS and connection is not None and connection.transport is not None:
                with reading_paused(connection):
                    await asyncio.sleep(pause_s(now - burst_began_at))
            read_at = now_s()


def pause_s(burst_s: float) -> float:
    """Return how long to pause reading, in seconds, in a burst that has lasted for `burst_s`."""
    return min(max(PAUSE_S, burst_s * PAUSE_PER_BURST_SECOND), PAUSE_MAX_S)


@contextmanager
def reading_paused(connection: Any) -> Iterator[None]:
    """Leave arriving data in the buffer of the kernel within the block.

    A TLS transport whose reading is paused goes on reading records until its own buffer is full, each record in its own
    iteration of the event loop. A TLS transport whose buffer has no space reads nothing.

    :param connection: A connection of aiohttp, whose `transport` is None once the connection is closed.
    """
    transport = connection.transport
    set_buffer_limits = getattr(transport, "set_read_buffer_limits", None)
    if set_buffer_limits is not None:
        set_buffer_limits(0)
    else:
        transport.pause_reading()
    try:
        yield
    finally:
        if set_buffer_limits is None:
            transport.resume_reading()
        elif connection.transport is transport:
            set_buffer_limits()


class _IdleTimeout:
    """Reads a body and fails with `TimeoutError` when nothing arrives for `idle_timeout_s`.

    The timeout of the HTTP library sets a timer for each record, which made up a tenth of the cost of an event.
    """

    def __init__(self, response: aiohttp.ClientResponse, idle_timeout_s: float) -> None:
        self._response = response
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._idle_timeout_s, self._check)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    async def read(self) -> bytes:
        self._waiting_since = self._loop.time()
        try:
            return await self._response.content.readany()
        finally:
            self._waiting_since = None

    def _check(self) -> None:
        now = self._loop.time()
        due = (now if self._waiting_since is None else self._waiting_since) + self._idle_timeout_s
        if now < due:
            self._timer = self._loop.call_at(due, self._check)
            return
        self._response.content.set_exception(TimeoutError(f"nothing arrived for {self._idle_timeout_s:g} s"))
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            # An orderly close of a TLS connection would wait for the peer's close_notify.
            connection.transport.abort()
