"""Streams the log of one rank into the log of the task while the gang runs.

The stream runs in a task of its own. It never delays the end of the gang or a deadline, may be stopped at any moment,
and knows the position that it has reached. The log is copied from there after the end of the gang. A log that grows
faster than the rate limit is not cut but written later.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.http.log_parser import LogCursor, LogParser
from airflow_provider_gangjobs.cluster.http.options import LogQuery
from airflow_provider_gangjobs.tracking.logs.format import LineWriter
from airflow_provider_gangjobs.tracking.logs.limits import BURST, BYTES_PER_UNIT, RATE, RateLimit, wait_for_turn
from airflow_provider_gangjobs.tracking.logs.whole import pod_exists

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.http.log_parser import LogPart, LogPosition
    from airflow_provider_gangjobs.tracking.logs.limits import StreamLimits
    from airflow_provider_gangjobs.tracking.logs.output import LineOutput
    from airflow_provider_gangjobs.tracking.logs.sources import LogSource

log = logging.getLogger(__name__)

PARTS_PER_TURN: Final = 20
"""How many lines are written at once. With `BYTES_PER_TURN`, they block the event loop for some milliseconds."""
BYTES_PER_TURN: Final = 2**16
IDLE_TIMEOUT_S: Final = 300.0
"""A program that writes nothing for this long is asked about again, because the connection may be dead."""
BACKOFF_BASE_S: Final = 1.0
BACKOFF_CAP_S: Final = 10.0
"""While a kubelet restarts, each of at most `STREAMS_MAX` logs is requested once in this time."""
LATE_S: Final = 2.0
LATE_NOTE_EVERY_S: Final = 300.0


class LogStream:
    """Streams one log.

    :param output: Where the lines go.
    :param bytes_max: How many bytes of the log are streamed in all. The rest is copied after the end of the gang.
    """

    def __init__(
        self,
        client: Client,
        source: LogSource,
        position: LogPosition | None,
        *,
        output: LineOutput,
        mask: Callable[[str], str],
        limits: StreamLimits,
        bytes_max: int,
    ) -> None:
        self._client = client
        self._source = source
        self._cursor = LogCursor(position)
        self._output = output
        self._lines = LineWriter(source.label, output.write, mask)
        self._limits = limits
        self._rate = RateLimit(RATE, BURST)
        self._bytes_left = bytes_max - (position.total if position else 0)
        self._late_s = 0.0
        """How long the limits have delayed the lines since they last did not."""
        self._late_note_at = -LATE_NOTE_EVERY_S

    @property
    def position(self) -> LogPosition | None:
        """The position after the last line that was written."""
        self._lines.flush()
        return self._cursor.position

    def note(self, note: str) -> None:
        """Write a line of the provider."""
        self._lines.note(note)

    async def run(self) -> None:
        """Stream the log until the task is cancelled, the log is gone, or `bytes_max` is reached."""
        backoff = Backoff(self._client.clock, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
        while self._bytes_left > 0:
            before = self.position
            try:
                async with self._limits.slots.slot():
                    await self._read_response()
            except (NotFound, Forbidden) as error:
                if isinstance(error, Forbidden) or not await self._pod_exists():
                    why = error if isinstance(error, Forbidden) else "the pod was deleted"
                    self.note(f"the log is not streamed any more: {why}")
                    return
            except ClusterError as error:  # also while the container is being restarted
                log.debug("%s", error)
            if self.position != before:
                backoff.reset()
            await self._client.clock.sleep(backoff.next())
        self.note("the stream ends here, because it has half of log_limit; the rest follows after the end of the gang")

    async def _pod_exists(self) -> bool:
        async with self._limits.requests_of(self._client):
            return await pod_exists(self._client, self._source)

    async def _read_response(self) -> None:
        """Write what one response has. It ends with the container, and may also end before."""
        query = LogQuery(self._source.container, follow=True, since_s=self._cursor.begin(), timestamps=True)
        parser = LogParser(timestamps=True)
        has_noted = False
        async with self._client.open_log(
            self._source.pod, self._source.namespace, query, idle_timeout_s=IDLE_TIMEOUT_S
        ) as chunks:
            async for chunk in chunks:
                parts = self._cursor.new_parts(parser.feed(chunk))
                if self._cursor.is_other_file and not has_noted:
                    has_noted = True
                    self.note("the log begins again: the container was restarted, or the kubelet has rotated the log")
                await self._write(parts)
                if self._bytes_left <= 0:
                    return

    async def _write(self, parts: Sequence[LogPart]) -> None:
        """Write parts in turns with the other tasks of the event loop, as fast as the limits allow."""
        at = 0
        while at < len(parts) and self._bytes_left > 0:
            late_s = await self._wait_for_turn()
            self._late_s = self._late_s + late_s if late_s else 0.0
            if self._late_s > LATE_S:
                self._note_late()
            turn = _first_turn(parts, at)
            at += len(turn)
            size = sum(len(part.text) + part.ends for part in turn)
            self._lines.write(turn)
            for part in turn:
                self._cursor.delivered(part)
            self._bytes_left -= size
            for limit in (self._rate, self._limits.total):
                limit.take(len(turn) + size / BYTES_PER_UNIT)
        self._lines.flush()

    async def _wait_for_turn(self) -> float:
        """Wait until the limits and the output allow the next lines. Return how long this took, in seconds.

        The rate limit that all logs share is not part of this time. The wait for the output is.
        """
        clock = self._client.clock
        late_s = await wait_for_turn(self._rate, self._limits.total, clock)
        before = clock.monotonic()
        await self._output.wait_until_free()
        return late_s + clock.monotonic() - before

    def _note_late(self) -> None:
        now = self._client.clock.monotonic()
        if now - self._late_note_at >= LATE_NOTE_EVERY_S:
            self._late_note_at = now
            self.note(
                f"this rank writes faster than the triggerer streams, at most {RATE:.0f} lines or KiB a second: "
                "its lines appear here later, and the rest after the end of the gang"
            )


def _first_turn(parts: Sequence[LogPart], at: int) -> Sequence[LogPart]:
    end, size = at, 0
    while end < len(parts) and end - at < PARTS_PER_TURN and size < BYTES_PER_TURN:
        size += len(parts[end].text)
        end += 1
    return parts[at:end]
