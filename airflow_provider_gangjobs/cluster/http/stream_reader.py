"""Reads the body of a watch: `read_batched` reads a busy stream in batches, at intervals, and an idle stream at once;
`read_chunks` is the plain way, which reads each chunk as it arrives.

Waking the reader for each event of a burst costs more than the event itself. A batch that holds little is expensive
too: the pause, the wake-up, and the first record cost 0.4 ms, however much follows.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import aiohttp

BATCH_PAUSE_S: Final = 0.02
"""The pause between two batches at the start of a burst. Chunks that are further apart are no burst."""
BATCH_PAUSE_MAX_S: Final = 0.05
BATCH_PAUSE_PER_BURST_SECOND: Final = 1 / 200
"""The pause grows with the length of the burst, to 50 ms after ten seconds: after a long burst, noticing its end a
moment later matters less. This saves a quarter of the CPU of a harvest that takes a minute. A thousand Jobs that end
within ten seconds are reported no later."""
BATCH_AFTER_CHUNKS: Final = 4
"""A burst begins after this many chunks in a row, each within `BATCH_PAUSE_S` of the previous one."""


class StreamReader(Protocol):
    """Yields the body of a response in chunks: `read_batched` or `read_chunks`.

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


def batch_pause_s(burst_s: float) -> float:
    """Return how long to pause reading, in seconds, in a burst that has lasted for `burst_s`."""
    return min(max(BATCH_PAUSE_S, burst_s * BATCH_PAUSE_PER_BURST_SECOND), BATCH_PAUSE_MAX_S)


async def read_batched(response: aiohttp.ClientResponse, *, idle_timeout_s: float) -> AsyncIterator[bytes]:
    """Yield the body in chunks as they arrive. In a burst, yield one chunk for each pause. See `StreamReader`."""
    now_s = asyncio.get_running_loop().time
    chunks_in_a_row = 0
    read_at = burst_at = now_s()
    with _IdleTimeout(response, idle_timeout_s) as reader:
        while chunk := await reader.read():
            yield chunk
            now = now_s()
            if now - read_at >= BATCH_PAUSE_S:
                chunks_in_a_row, burst_at = 0, now
            else:
                chunks_in_a_row += 1
            connection = response.connection  # None once the body has ended
            if chunks_in_a_row >= BATCH_AFTER_CHUNKS and connection is not None and connection.transport is not None:
                with reading_paused(connection):
                    await asyncio.sleep(batch_pause_s(now - burst_at))
            read_at = now_s()


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


@contextmanager
def reading_paused(connection: Any) -> Iterator[None]:
    """Leave arriving data in the kernel's buffer within the block.

    A TLS transport that is told to pause goes on reading up to half a megabyte of records, each in its own iteration
    of the loop. A TLS transport without buffer space does not.
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
        elif connection.transport is transport:  # The connection was not closed meanwhile.
            set_buffer_limits()
