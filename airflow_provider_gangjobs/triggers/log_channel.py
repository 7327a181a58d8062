"""The channel over which a triggerer sends the lines of its triggers to its supervisor, which writes them to files.

Airflow's supervisor (`airflow/jobs/triggerer_job_runner.py`, `TriggerRunnerSupervisor`) receives lines and events over
two sockets, and reads at most 4 KiB of lines between two rounds of queries of its database. When it receives the event
with which a trigger ends, it closes the log of this trigger. It writes lines that it reads later to its own output, and
they are missing in the log of the task. When the channel is full, the next line blocks the event loop of all triggers.

So a trigger waits with its event until its lines are read, and a stream waits with its lines while many are unread.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from airflow_provider_gangjobs.cluster.loop_local import loop_local

if TYPE_CHECKING:
    from collections.abc import Callable

UNREAD_BYTES_MAX: Final = 32 * 1024
"""A stream waits while more than this is unread. A channel has room for 208 KiB by default. The kernel counts at least
1,280 bytes for each line, so this is what the supervisor reads in two rounds."""
POLL_S: Final = 0.01
DRAIN_S: Final = 5.0
"""How long an event waits at most until the lines of its trigger are read."""
_COUNT_BYTES: Final = 4


def find_channel() -> int | None:
    """Return the file descriptor of the socket to which this process logs; `None` if it logs to no socket.

    Airflow gives the socket to structlog (`_configure_logs_over_json_channel` in `airflow/sdk`).
    """
    stream = getattr(structlog.get_config().get("logger_factory"), "io", None)
    with suppress(AttributeError, OSError, ValueError):
        descriptor: int = stream.fileno()  # type: ignore[union-attr]  # no stream has no `fileno`
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    return None


class LogChannel:
    """The channel of this process, shared by the triggers of an event loop.

    :param find: Returns the file descriptor of the channel, or `None` if there is none.
    """

    def __init__(self, find: Callable[[], int | None] = find_channel) -> None:
        self._find = find
        self._streams = asyncio.Lock()
        self._events = asyncio.Lock()
        self._waiting_events = 0

    def unread_bytes(self) -> int | None:
        """Return how many bytes of memory the lines use that the supervisor has not read. `None` means unknown.

        If the process logs to something else than a socket, lines are written at once, and the result is 0.
        """
        channel = self._find()
        if channel is None:
            return 0
        try:
            count = fcntl.ioctl(channel, termios.TIOCOUTQ, bytes(_COUNT_BYTES))
        except OSError:  # only Linux counts the bytes of a local socket
            return None
        return int.from_bytes(count, sys.byteorder)

    async def wait_until_free(self) -> None:
        """Wait until further lines of a stream have room. Events go first."""
        async with self._streams:
            while self._waiting_events or (self.unread_bytes() or 0) > UNREAD_BYTES_MAX:  # noqa: ASYNC110 - no event tells that the supervisor reads
                await asyncio.sleep(POLL_S)

    async def drain(self, within_s: float = DRAIN_S) -> bool:
        """Wait until all lines that were logged are read. Return false if this is unknown, or takes too long."""
        self._waiting_events += 1
        try:
            async with asyncio.timeout(within_s), self._events:
                while unread := self.unread_bytes():  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
                return unread == 0
        except TimeoutError:
            return False
        finally:
            self._waiting_events -= 1


def log_channel() -> LogChannel:
    """Return the channel that the triggers of the running event loop share."""
    return loop_local(LogChannel)


__all__ = ["LogChannel", "find_channel", "log_channel"]
