"""Streams the log of one rank into the log of the task while the gang runs.

The stream runs in a task of its own. It never delays a deadline, may be stopped at any moment, and knows the position
that it has reached. The log is copied from there after the end of the gang, unless the stream has read the log to its
end: that is the end of a response that was requested after the end of the pod. The end of the response that followed
the program is no proof, so each streamed log is read once more: the API server ends it in the same way if its
connection to the kubelet breaks (`StreamObject` in `k8s.io/apiserver` 1.37 ignores the error). A log that grows faster
than the rate limit is not cut but written later: the stream reads no faster than it writes.

The log of a pod that is being deleted cannot be copied later, because the kubelet removes the log with the containers.
So after `read_ahead` the stream reads to the end of the log at once, into memory, and writes what it has read as fast
as the log of the task takes it. If the memory does not suffice, the stream leaves out the oldest lines that it has not
written, and writes a note with their number.

The limits that all streams of a process share (`StreamLimits`) keep logs from delaying other work and from taking all
connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.clock import Backoff, TimeSlice
from airflow_provider_gangjobs.cluster.errors import BadRequest, ClusterError, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.http.log_reader import LogCursor, LogParser, LogPosition
from airflow_provider_gangjobs.cluster.http.transport import LogQuery
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.state.pods import has_container_ended
from airflow_provider_gangjobs.tracking.logs.copy import Omission
from airflow_provider_gangjobs.tracking.logs.whole_logs import pod_exists

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.http.log_reader import LogPart
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource
    from airflow_provider_gangjobs.tracking.logs.whole_logs import LineWriter


STREAMS_MAX: Final = 64
"""How many logs an event loop streams at once. Each is a connection to the API server, and one from it to a kubelet."""
SLICE_S: Final = 10.0
"""How long a log is streamed at least before another log that waits takes its turn."""
OPENS_PER_S: Final = 20.0
"""How many streams an event loop opens a second. Each costs a TLS handshake, some 10 ms of CPU at both ends."""
REQUESTS_MAX: Final = 4
"""How many other requests of a client for streams are in flight. The followers use the same connections."""
BYTES_PER_UNIT: Final = 1024
RATE: Final = 200.0
"""How many lines a second of one log are written, on average. A KiB counts as a line."""
BURST: Final = 2000.0
TOTAL_RATE: Final = 2000.0
"""The same for all logs of an event loop. A line takes a triggerer about 0.1 ms."""
TOTAL_BURST: Final = 4000.0
AHEAD_MAX: Final = 64
"""How many logs of pods that are being deleted an event loop reads at once, besides the streams."""
AHEAD_BYTES_TOTAL_MAX: Final = 64 * 2**20
"""How much of the logs of all gangs of an event loop may be in memory, read and not written."""
END_BYTES: Final = 64 * 1024
"""The end of a log, which is kept and written also if there is no memory or no time for more."""
SAVES_PER_S: Final = 2.0
"""How many positions an event loop writes a second. Each is a patch, which all watches of Jobs receive."""
SAVE_EVERY_MIN_S: Final = 5.0
SAVE_EVERY_MAX_S: Final = 60.0


class StreamSlots:
    """Lets a limited number of logs be streamed at once. Logs that wait take turns with the logs that are streamed."""

    def __init__(self, size: int = STREAMS_MAX, slice_s: float = SLICE_S, *, opens_per_s: float = OPENS_PER_S) -> None:
        self._free = asyncio.Semaphore(size)
        self._slice_s = slice_s
        self._open_every_s = 1 / opens_per_s
        self._next_open_at = 0.0
        """When the next stream may be opened, by the clock of the loop."""
        self._holders: dict[asyncio.Timeout, float] = {}
        """When each holder began that may stay for as long as nobody waits, oldest first."""
        self._waiting = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot. The block ends, without an error, when it has to give its slot to another."""
        if self._free.locked():
            self._stop_oldest()
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._wait_to_open()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._slice_s if self._waiting else None) as timeout:
                    if not self._waiting:
                        self._holders[timeout] = asyncio.get_running_loop().time()
                    try:
                        yield
                    finally:
                        self._holders.pop(timeout, None)
        finally:
            self._free.release()

    async def _wait_to_open(self) -> None:
        """Wait so that streams open one after the other. Thus their slices also end one after the other."""
        now = asyncio.get_running_loop().time()
        open_at = max(now, self._next_open_at)
        self._next_open_at = open_at + self._open_every_s
        await asyncio.sleep(open_at - now)

    def _stop_oldest(self) -> None:
        oldest = next(iter(self._holders), None)
        if oldest is not None:
            oldest.reschedule(max(self._holders.pop(oldest) + self._slice_s, asyncio.get_running_loop().time()))


class RateLimit:
    """A token bucket.

    :param rate: How many units are free in a second, on average.
    :param burst: How many units are free at once.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._free = burst
        self._at: float | None = None

    def delay_s(self, now: float) -> float:
        """Return how long to wait before the next units, in seconds."""
        elapsed = 0.0 if self._at is None else now - self._at
        self._free = min(self._burst, self._free + elapsed * self._rate)
        self._at = now
        return max(0.0, -self._free / self._rate)

    def take(self, units: float) -> None:
        """Take units. There may be fewer than that: then the next ones have to wait for longer."""
        self._free -= units


class StreamLimits:
    """The limits that all logs of an event loop share."""

    def __init__(self) -> None:
        self.slots = StreamSlots()
        self.total = RateLimit(TOTAL_RATE, TOTAL_BURST)
        self._requests: WeakKeyDictionary[Client, asyncio.Semaphore] = WeakKeyDictionary()
        self.ahead = asyncio.Semaphore(AHEAD_MAX)
        self.ahead_bytes = 0
        """How many bytes of all logs are read and not written."""
        self.gangs = 0
        """How many gangs have streams."""

    def requests_of(self, client: Client) -> asyncio.Semaphore:
        """Return the semaphore that each request for a stream of this client holds, except the stream itself."""
        return self._requests.setdefault(client, asyncio.Semaphore(REQUESTS_MAX))

    @property
    def save_every_s(self) -> float:
        """How long a gang waits before it writes its positions again."""
        return min(max(self.gangs / SAVES_PER_S, SAVE_EVERY_MIN_S), SAVE_EVERY_MAX_S)


class LineOutput(Protocol):
    """The log of a task, while a triggerer writes it."""

    def write(self, lines: Sequence[str]) -> None:
        """Write lines. The call must take no longer than some milliseconds."""

    async def wait_until_free(self) -> None:
        """Wait until the output has room for further lines."""

    async def drain(self, within_s: float) -> bool:
        """Wait at most this long until written lines no longer depend on this process. Return false if they may."""


log = logging.getLogger(__name__)

PARTS_PER_TURN: Final = 20
"""How many lines are written at once. With `BYTES_PER_TURN`, they block the event loop for some milliseconds."""
BYTES_PER_TURN: Final = 2**16
IDLE_TIMEOUT_S: Final = 300.0
"""A program that writes nothing for this long is asked about again, because the connection may be dead."""
BACKOFF_BASE_S: Final = 1.0
BACKOFF_CAP_S: Final = 10.0
"""While a kubelet restarts, each of at most `STREAMS_MAX` logs is requested once in this time."""
AHEAD_BACKOFF_BASE_S: Final = 0.1
"""The same for the log of a pod that is being deleted, whose log may be removed in a second."""
AHEAD_BACKOFF_CAP_S: Final = 1.0
LATE_S: Final = 2.0
LATE_NOTE_EVERY_S: Final = 300.0


class _Turn(NamedTuple):
    """Lines that were read, and are written at once."""

    parts: Sequence[LogPart]
    size: int
    position: LogPosition | None
    """The position after these lines."""
    ends_chunk: bool


class StreamBudget(NamedTuple):
    """How much of a log is streamed."""

    bytes_max: int
    """While the pod is not being deleted. The rest is copied after the end of the gang."""
    ahead_bytes_max: Callable[[], int]
    """Returns how many bytes may be in memory that are read and not written."""


class LogStream:
    """Streams one log.

    :param lines: Writes the lines to the output.
    :param has_pod_ended: Returns whether the pod has succeeded or failed, so that no container is started again.
    """

    def __init__(
        self,
        client: Client,
        source: LogSource,
        position: LogPosition | None,
        *,
        lines: LineWriter,
        output: LineOutput,
        budget: StreamBudget,
        has_pod_ended: Callable[[], bool],
    ) -> None:
        self._client = client
        self._source = source
        self._cursor = LogCursor(position)
        self._output = output
        self._lines = lines
        self._limits = loop_local(StreamLimits)
        self._bytes_left = budget.bytes_max - (position.total if position else 0)
        self._ahead_bytes_max = budget.ahead_bytes_max
        self._has_pod_ended = has_pod_ended
        self._position = self._read_to = position
        self._turns: deque[_Turn | str] = deque()
        """What was read and is not written: lines, and notes between them."""
        self._turns_bytes = 0
        self._omitted_lines = self._omitted_bytes = 0
        """How much was left out before the first turn."""
        self._has_changed = asyncio.Event()
        self._must_read_ahead = False
        self._has_container_ended = False
        self._slot_wait: asyncio.Timeout | None = None
        self._last_line: Sequence[LogPart] = ()
        """The last line of the last response, if it has no line end."""
        self._rate = RateLimit(RATE, BURST)
        self._late_s = 0.0
        """How long the limits have delayed the lines since they last did not."""
        self._late_note_at = -LATE_NOTE_EVERY_S
        self.has_read = asyncio.Event()
        """The stream reads nothing more."""
        self.has_written = asyncio.Event()
        """The stream writes nothing more."""
        self.is_at_end = False
        """The stream has read the log to its end."""

    @property
    def position(self) -> LogPosition | None:
        """The position after the last line, or piece of a line, that was written."""
        self._lines.flush(is_end=False)
        return self._position

    @property
    def is_whole(self) -> bool:
        """Whether the log was read to its end, and all that was read is written. What was left out has a note."""
        return self.is_at_end and not self._turns

    def note(self, note: str) -> None:
        """Write a line of the provider."""
        self._lines.note(note)

    def read_ahead(self, pod: PodView) -> None:
        """Read to the end of the log, because the pod is being deleted. Safe to repeat.

        :param pod: The pod as it is now.
        """
        self._must_read_ahead = True
        self._has_container_ended |= has_container_ended(pod, self._source.container)
        if self._slot_wait is not None:
            self._slot_wait.reschedule(asyncio.get_running_loop().time())
            self._slot_wait = None  # a timeout that has passed cannot be rescheduled
        self._has_changed.set()

    def give_up(self, *, bytes_max: int) -> None:
        """Read nothing more, and leave out all but the last bytes of what is not written."""
        self.has_read.set()
        self._leave_out(bytes_max)
        self._has_changed.set()

    async def run(self) -> None:
        """Stream the log until the task is cancelled, the log is gone, or `bytes_max` is reached."""
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read())
                tasks.create_task(self._write())
                await self.has_read.wait()
                reading.cancel()
        finally:
            self.has_read.set()
            self.has_written.set()
            self._limits.ahead_bytes -= self._turns_bytes
            self._turns_bytes = 0

    # -- reading ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            await self._read_responses()
            if not self._must_read_ahead and not self.has_read.is_set():
                self._turns.append(
                    "the stream ends here, because it has half of log_limit; the rest follows after the end of the gang"
                )
        finally:
            self.has_read.set()
            self._has_changed.set()

    async def _read_responses(self) -> None:
        """Read until the log is gone, `bytes_max` is reached, or the container has ended and its log is read."""
        clock = self._client.clock
        backoff = Backoff(clock, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
        ahead = Backoff(clock, base_s=AHEAD_BACKOFF_BASE_S, cap_s=AHEAD_BACKOFF_CAP_S)
        is_at_end = False
        while self._must_read_ahead or self._bytes_left > 0:
            before, had_ended = self._cursor.position, self._has_container_ended or self._has_pod_ended()
            try:
                is_at_end = await self._read_in_slot()
                if is_at_end and had_ended:
                    return await self._finish()
            except (NotFound, Forbidden, BadRequest) as error:
                if is_at_end and self._has_container_ended and self._must_read_ahead:
                    return await self._finish()  # the log was read to its end before the kubelet removed it
                if note := await self._note_on_end(error):
                    return await self._end(note)
            except ClusterError as error:  # also while the container is being restarted
                is_at_end = False
                log.debug("%s", error)
            if self._cursor.position != before:
                backoff.reset()
                ahead.reset()
            await self._pause(ahead.next() if self._must_read_ahead else backoff.next())
        return None

    async def _finish(self) -> None:
        """End the stream at the end of the log, unless the last line exceeds `bytes_max`."""
        if not self._must_read_ahead and sum(len(part.text) for part in self._last_line) > self._bytes_left:
            return
        self.is_at_end = True
        await self._enqueue_last_line()
        self._turns.append(f"end of the log{', which was read before the pod was removed' * self._must_read_ahead}")
        self.has_read.set()

    async def _end(self, note: str) -> None:
        """End the stream with a note, because nothing more can be read."""
        if self._must_read_ahead:
            await self._enqueue_last_line()
        self._turns.append(note)
        self.has_read.set()

    async def _enqueue_last_line(self) -> None:
        """Have the last line written, which may have no line end."""
        await self._enqueue([replace(part, ends=True) for part in self._last_line])

    async def _pause(self, seconds: float) -> None:
        """Sleep before the next request. `read_ahead` ends the pause of the other requests."""
        is_ahead, until = self._must_read_ahead, self._client.clock.monotonic() + seconds
        while (left_s := until - self._client.clock.monotonic()) > 0 and is_ahead == self._must_read_ahead:
            self._has_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._has_changed.wait()

    async def _note_on_end(self, error: ClusterError) -> str:
        """Return a note if the log cannot be read any more; an empty text if another request may read it."""
        if isinstance(error, Forbidden):
            return f"the log is not streamed any more: {error}"
        if isinstance(error, BadRequest):
            is_removed = self._must_read_ahead and self._has_container_ended
            return f"the log is not streamed any more: {error}" if is_removed else ""
        async with self._limits.requests_of(self._client):
            exists = await pod_exists(self._client, self._source)
        return "" if exists else "the log is not streamed any more: the pod was deleted"

    async def _read_in_slot(self) -> bool:
        """Read one response. Return whether the server has ended it, which it does at the end of the container."""
        if self._must_read_ahead:
            async with self._limits.ahead:
                return await self._read_response()
        try:
            async with asyncio.timeout(None) as self._slot_wait:  # `read_ahead` ends the wait for a slot
                async with self._limits.slots.slot():
                    self._slot_wait = None
                    return await self._read_response()
        except TimeoutError:
            log.debug("the log of pod %s is read at once", self._source.pod)
        finally:
            self._slot_wait = None
        return False

    async def _read_response(self) -> bool:
        query = LogQuery(self._source.container, follow=True, since_s=self._cursor.begin(), timestamps=True)
        parser = LogParser(timestamps=True)
        has_noted = False
        async with self._client.open_log(
            self._source.pod, self._source.namespace, query, idle_timeout_s=IDLE_TIMEOUT_S
        ) as chunks:
            async for chunk in chunks:
                parts = self._cursor.new_parts(parser.feed(chunk))
                if parts:  # they begin with the last line of the response before
                    self._last_line = ()
                if self._cursor.is_other_file and not has_noted:
                    has_noted = True
                    self._turns.append(
                        "the log begins again: the container was restarted, or the kubelet has rotated the log"
                    )
                await self._enqueue(parts)
                if not self._must_read_ahead and self._bytes_left <= 0:
                    return False
        self._last_line = self._cursor.new_parts(parser.end())
        return True

    async def _enqueue(self, parts: Sequence[LogPart]) -> None:
        """Have parts written. Without `read_ahead`, wait until the parts before them are written."""
        at = 0
        while at < len(parts) and (self._must_read_ahead or self._bytes_left > 0):
            while self._turns and not self._must_read_ahead:
                self._has_changed.clear()
                await self._has_changed.wait()
            turn = _first_turn(parts, at)
            at += len(turn)
            for part in turn:
                self._cursor.delivered(part)
            size = sum(len(part.text) + part.ends for part in turn)
            self._turns.append(_Turn(turn, size, self._cursor.position, ends_chunk=at == len(parts)))
            self._count(size)
            self._bytes_left -= size
            if self._must_read_ahead:
                others = self._limits.ahead_bytes - self._turns_bytes
                self._leave_out(max(min(self._ahead_bytes_max(), AHEAD_BYTES_TOTAL_MAX - others), END_BYTES))
            self._has_changed.set()
            await loop_local(TimeSlice).yield_if_due()

    def _count(self, size: int) -> None:
        self._turns_bytes += size
        self._limits.ahead_bytes += size

    def _leave_out(self, bytes_max: int) -> None:
        """Leave out the oldest lines, but never the last turn."""
        while self._turns_bytes > bytes_max:
            turn = self._turns[0]
            if isinstance(turn, _Turn):
                if turn.size == self._turns_bytes:
                    return
                self._count(-turn.size)
                self._omitted_bytes += turn.size
                self._omitted_lines += sum(part.ends for part in turn.parts)
            self._turns.popleft()

    # -- writing ---------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Write what is read, in turns with the other tasks of the event loop, as fast as the limits allow."""
        while self._turns or not self.has_read.is_set():
            if not self._may_write():
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            late_s = await self._wait_for_turn()
            if not self._may_write():
                continue
            turn = self._turns.popleft()  # not the one before the wait, if that one was left out
            if isinstance(turn, str):
                self.note(turn)
            else:
                self._write_turn(turn, late_s)
            self._has_changed.set()
        self._lines.flush()
        self._position = self._read_to

    def _may_write(self) -> bool:
        """Return whether there is something to write. Lines are left out until the log is read, and get one note."""
        return bool(self._turns) and (not self._omitted_bytes or self.has_read.is_set())

    def _write_turn(self, turn: _Turn, late_s: float) -> None:
        if self._omitted_bytes:
            omission = Omission(self._omitted_lines, self._omitted_bytes, in_line=not turn.parts[0].begins)
            self.note(f"left out here: {omission}, because the pod was deleted before they were written")
            self._omitted_lines = self._omitted_bytes = 0
        units = len(turn.parts) + turn.size / BYTES_PER_UNIT
        if not self._must_read_ahead:
            self._note_lateness(late_s)
        self._lines.write(turn.parts)
        before, self._read_to = self._read_to, turn.position
        if not self._lines.unfinished:
            self._position = turn.position
        else:
            self._lines.flush(is_end=False)
            if self._lines.unfinished == 1:
                self._position = before
        self._count(-turn.size)
        for limit in (self._rate, self._limits.total):
            limit.take(units)
        if turn.ends_chunk:
            self._lines.flush(is_end=False)

    async def _wait_for_turn(self) -> float:
        """Wait until the limits and the output allow the next lines. Return how long this took, in seconds.

        The rate limit that all logs share is not part of this time. The wait for the output is.
        """
        clock = self._client.clock
        now = clock.monotonic()
        late_s = 0.0 if self._must_read_ahead else self._rate.delay_s(now)
        await clock.sleep(max(late_s, self._limits.total.delay_s(now)))
        before = clock.monotonic()
        await self._output.wait_until_free()
        return late_s + clock.monotonic() - before

    def _note_lateness(self, late_s: float) -> None:
        self._late_s = self._late_s + late_s if late_s else 0.0
        now = self._client.clock.monotonic()
        if self._late_s > LATE_S and now - self._late_note_at >= LATE_NOTE_EVERY_S:
            self._late_note_at = now
            self.note(
                f"the triggerer streams at most {RATE:.0f} lines or KiB a second: the lines appear here later, and the "
                "rest after the end of the gang"
            )


def _first_turn(parts: Sequence[LogPart], at: int) -> Sequence[LogPart]:
    end, size = at, 0
    while end < len(parts) and end - at < PARTS_PER_TURN and size < BYTES_PER_TURN:
        if end > at and not parts[end].ends:  # it may be held, and the lines before it may not
            break
        size += len(parts[end].text)
        end += 1
    return parts[at:end]
