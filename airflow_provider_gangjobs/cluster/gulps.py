"""Gulps: a stream that says something all the time is read at intervals.

To be woken for each event of a burst costs more than the event does, and so does a gulp that brings little: the pause,
the wake-up and the first record take 0.4 ms whatever follows. A stream that speaks now and then is heard at once.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

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


async def in_gulps(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body in chunks as they come, in a burst as many at once as came within a gulp."""
    clock = asyncio.get_running_loop().time
    soon = 0
    heard_at = burst_at = clock()
    while chunk := await response.content.readany():
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
