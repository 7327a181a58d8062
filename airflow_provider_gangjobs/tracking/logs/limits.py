"""Limits of the logs that one process streams, and the stored positions with which another process continues.

The limits keep logs from delaying other work and from taking all connections.

A trigger has no state of its own that survives its process, and Airflow offers a trigger no place for one. So the
positions of streamed logs are kept on the Job. They are written every few seconds while lines arrive
(`StreamLimits.save_every_s`), and when the stream is stopped. After a process was killed, at most the lines of this
time appear a second time, after a note that says so. None is lost. A gang that ends sooner writes no position.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.gang.outcome.restarts import Progressed, StreamedTo
from airflow_provider_gangjobs.gang.record import read_mark, to_text
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_PROGRESS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport


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
AHEAD_BYTES_MAX: Final = 8 * 2**20
"""How much of the logs of one gang may be in memory, read and not written, when its pods are deleted."""
AHEAD_BYTES_TOTAL_MAX: Final = 64 * 2**20
"""The same for all gangs of an event loop."""
END_BYTES: Final = 64 * 1024
"""The end of a log, which is kept and written also if there is no memory or no time for more."""
SAVES_PER_S: Final = 2.0
"""How many positions an event loop writes a second. Each is a patch, which all watches of Jobs receive."""
SAVE_EVERY_MIN_S: Final = 5.0
SAVE_EVERY_MAX_S: Final = 60.0
UNNOTED_AFTER_S: Final = 30.0
"""Airflow gives the triggers of a killed triggerer to another one after this time. So if a rank has run for longer when
this process begins, another process may have streamed its log, and may have been killed before it saved a position."""


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


PROCESS: Final = secrets.token_hex(4)
"""Names this process. Airflow empties the log of a trigger that the same triggerer runs again."""


class PositionStore:
    """The positions of a gang's logs as another process has stored them. Writes those of this process.

    :param stored: `ANNOTATION_PROGRESS` of the Job as this process sees it before it streams; empty if there is none.
        An unreadable annotation is no position.
    :param log_id: Names the log of the task into which the logs are streamed, such as a try of the task. The positions
        for another log are of no use, because that log has none of the lines.
    """

    def __init__(self, client: Client, ref: GangRef, stored: str, log_id: str, process: str = PROCESS) -> None:
        self.client = client
        self.ref = ref
        self._log_id = log_id
        self._process = process
        self._saved: tuple[dict[str, str], bool] | None = None
        self.is_new = not stored
        """No process has stored anything."""
        self.positions: dict[str, str] = {}
        """The stored positions by `LogSource.key`."""
        self.repeated_s = 0.0
        """The time before the end of the stream whose lines the stored positions may not include; 0 if the positions
        are the last ones of the stream."""
        known = read_mark(Progressed, stored)
        self._report = known.report
        if known.streamed and known.streamed.log == log_id and known.streamed.process != process:
            self.repeated_s = known.streamed.every_s
            self.positions = known.streamed.positions

    async def save(
        self, positions: Mapping[str, str], *, every_s: float, report: SupervisorReport | None = None
    ) -> None:
        """Write the positions if they have changed. A failure is ignored, because the next call writes them again.

        The first call writes them also if there is none yet, so that a process that comes later knows of the stream.
        A process that was killed before is recognized by the time for which the rank runs (`UNNOTED_AFTER_S`).

        :param every_s: After how many seconds the positions are written again; 0 if the stream ends at them.
        :param report: What the lines before these positions say about the progress of the gang. It is written by the
            same request. `None` leaves the report as it is.
        """
        is_exact = not every_s
        if self._saved in ((positions, is_exact), (positions, True)):
            return
        self._report = report or self._report
        streamed = StreamedTo(log=self._log_id, process=self._process, every_s=every_s, positions=dict(positions))
        mark = to_text(Progressed(report=self._report, streamed=streamed))
        patch = {"metadata": {"annotations": {ANNOTATION_PROGRESS: mark}}}
        ref = self.ref
        with suppress(ClusterError):
            await patch_uid(self.client, JOBS, ref.name, ref.namespace, ref.uid, patch)
            self._saved = dict(positions), is_exact
