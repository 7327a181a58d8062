"""Gulps: a stream that says something all the time is read at intervals.

To be woken for each event of a burst costs more than the event does, and so does a gulp that brings little: the pause,
the wake-up and the first record take 0.4 ms whatever follows. A stream that speaks now and then is heard at once.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import aiohttp

GULP_S: Final = 0.02
"""Between two gulps of a burst that has just begun. What comes less often is no burst."""
GULP_MAX_S: Final = 0.05
GULP_OF_BURST: Final = 1 / 200
"""The longer a burst lasts the less it matters to hear of its end a moment later: after ten seconds a gulp is 50 ms.
A harvest of a minute costs a quarter less CPU so; a thousand Jobs that end within ten seconds are told of no later."""
GULPS_AFTER_CHUNKS: Final = 4
"""In a row, each so soon after the one before."""


def gulp_s(lasted_s: float) -> float:
    """How long to leave a stream alone whose burst has lasted for so long."""
    return min(max(GULP_S, lasted_s * GULP_OF_BURST), GULP_MAX_S)


async def in_gulps(response: aiohttp.ClientResponse, *, silence_s: float) -> AsyncIterator[bytes]:
    """The body in chunks as they come, in a burst as many at once as came within a gulp.

    Raises:
        TimeoutError: nothing came for `silence_s`.
        aiohttp.ClientError: the connection broke.
    """
    clock = asyncio.get_running_loop().time
    soon = 0
    heard_at = burst_at = clock()
    with _Patience(response, silence_s) as patience:
        while chunk := await patience.read():
            yield chunk
            now = clock()
            if now - heard_at >= GULP_S:
                soon, burst_at = 0, now
            else:
                soon += 1
            connection = response.connection  # none once the body has ended
            if soon >= GULPS_AFTER_CHUNKS and connection is not None and connection.transport is not None:
                with unread(connection):
                    await asyncio.sleep(gulp_s(now - burst_at))
            heard_at = clock()


class _Patience:
    """Reads a body, and gives up if nothing has come for too long.

    The HTTP library can do that too, with a timer for each record that comes: a tenth of what an event cost.
    """

    def __init__(self, response: aiohttp.ClientResponse, silence_s: float) -> None:
        self._response = response
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._silence_s, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    async def read(self) -> bytes:
        self._waits_since = self._loop.time()
        try:
            return await self._response.content.readany()
        finally:
            self._waits_since = None

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._waits_since is None else self._waits_since) + self._silence_s
        if now < due:
            self._timer = self._loop.call_at(due, self._look)
            return
        self._response.content.set_exception(TimeoutError(f"nothing came for {self._silence_s:g} s"))
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            # A TLS connection that is closed in order waits for the other end's farewell.
            connection.transport.abort()


@contextmanager
def unread(connection: Any) -> Iterator[None]:
    """Within the block, what comes is left to the kernel.

    A TLS transport that is told to pause reads on, up to half a megabyte of records, each at a turn of the loop. One
    that has no room for them does not.
    """
    transport = connection.transport
    give_room = getattr(transport, "set_read_buffer_limits", None)
    if give_room is not None:
        give_room(0)
    else:
        transport.pause_reading()
    try:
        yield
    finally:
        if give_room is None:
            transport.resume_reading()
        elif connection.transport is transport:  # and was not closed meanwhile
            give_room()
