"""Streams the logs of chosen ranks of one gang, in an asyncio task of its own for each rank.

When pods are deleted, which the Job controller does with the other pods of a rank that fails, the logs that the task
wants are read to their end at once, also of ranks that are not streamed. See `rank_stream`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.http.log_reader import LogPosition
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.gang.state.pods import has_started, pods_of, rank_of
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_COMPLETION_INDEX
from airflow_provider_gangjobs.tracking.logs.last_lines import RANKS_MAX, must_be_read_now, sources_of
from airflow_provider_gangjobs.tracking.logs.limits import (
    AHEAD_BYTES_MAX,
    END_BYTES,
    SAVE_EVERY_MIN_S,
    StreamLimits,
)
from airflow_provider_gangjobs.tracking.logs.rank_stream import LineOutput, LogStream
from airflow_provider_gangjobs.tracking.logs.whole_logs import format_note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource
    from airflow_provider_gangjobs.tracking.logs.limits import PositionStore


LOOK_BASE_S: Final = 1.0
LOOK_CAP_S: Final = 30.0
DRAIN_S: Final = 5.0
"""How long a stream waits until its lines are read, before it saves its position."""
END_WITHIN_S: Final = 5.0
"""How long the end of a log may take whose other lines were left out."""
DRAIN_AT_END_S: Final = 0.5
"""How long a process that ends waits until its lines are read. Airflow reads them also while the process ends."""


class WantedLogs(NamedTuple):
    """The logs of a gang that the log of the task is to have while the gang runs, or when pods are deleted."""

    ranks: Sequence[int]
    """The ranks whose logs are streamed."""
    bytes_max: int
    """How many bytes of each log are streamed."""
    kept: Logs = Logs.NONE
    """The policy that selects the further logs that are read when their pods are deleted."""
    kept_bytes_max: int = AHEAD_BYTES_MAX
    """How many bytes of all logs are read when pods are deleted."""


class GangStreams:
    """The streams of one gang. `run` ends only when it is cancelled.

    :param store: The stored positions of the gang.
    :param output: The log of the task.
    :param mask: Returns a text with its secrets replaced.
    """

    def __init__(
        self, store: PositionStore, wanted: WantedLogs, *, output: LineOutput, mask: Callable[[str], str]
    ) -> None:
        self._client = client = store.client
        self._ref = store.ref
        self._wanted = wanted
        self._deleted: dict[str, PodView] = {}
        """The last views of the pods that are being deleted, and whose logs are wanted, by uid."""
        self._last_streams: dict[str, LogStream] = {}
        """The streams that read the logs of these pods, by uid."""
        self._tasks: asyncio.TaskGroup | None = None
        self._has_tasks = asyncio.Event()
        self._store = store
        self._output = output
        self._mask = mask
        self._limits = loop_local(StreamLimits)
        self._requests = self._limits.requests_of(client)
        self._positions: dict[str, str] = {}
        self.has_loaded = False
        """The positions of an earlier process are known."""
        self._streams: dict[str, LogStream] = {}

    @property
    def positions(self) -> dict[str, str]:
        """How far each log was streamed, by `LogSource.key`, in the form of `GangEvent.streamed`."""
        reached = {key: str(stream.position) for key, stream in self._streams.items() if stream.position is not None}
        unread = dict.fromkeys(self._streams, "")
        return unread | self._positions | reached

    @property
    def whole_logs(self) -> list[str]:
        """The logs that were read to their end, and written, by `LogSource.key`."""
        return [key for key, stream in self._streams.items() if stream.is_whole]

    @property
    def notes(self) -> list[str]:
        """Notes on logs that another process has streamed, and that no stream of this process continues."""
        if not self._store.repeated_s:
            return []
        labels = [key for key in self._positions if key not in self._streams]
        if not self._positions and not self._streams:  # the process before was killed before it saved a position
            labels = [self._ref.name]
        return [format_note(label, self._repetition) for label in labels]

    @property
    def _repetition(self) -> str:
        return (
            "another triggerer streamed this log, and was killed: the lines that follow, of about "
            f"{self._store.repeated_s:.0f} seconds, may appear a second time"
        )

    async def run(self) -> None:
        """Stream the logs, and save their positions from time to time."""
        limits, clock = self._limits, self._client.clock
        await self.load()
        limits.gangs += 1
        try:
            # From here on, the positions of the process before are not the last ones. If there are none, a process that
            # comes later learns of this stream, unless so many gangs may begin at once that the patches are spread.
            if self._positions or limits.save_every_s <= SAVE_EVERY_MIN_S:
                await self._save(limits.save_every_s)
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._has_tasks.set()
                for pod in self._deleted.values():
                    self._read_ahead(pod)
                for rank in self._wanted.ranks:
                    tasks.create_task(self._stream(rank))
                # Gangs that began at the same time save their positions at different times.
                save_in_s = clock.random_between(0.0, limits.save_every_s)
                while True:
                    await clock.sleep(save_in_s)
                    save_in_s = limits.save_every_s
                    await self._save(save_in_s)
        finally:
            limits.gangs -= 1

    async def save(self) -> None:
        """Save the positions of the streams, which have ended.

        The process may be about to end, so this does not wait for the requests of other gangs.
        """
        positions = self.positions
        await self._output.drain(DRAIN_AT_END_S)
        await self._store.save(positions, every_s=0.0)

    async def _save(self, every_s: float) -> None:
        """Save positions of lines that are in the log of the task also if this process is killed."""
        positions = self.positions
        if await self._output.drain(DRAIN_S):
            async with self._requests:
                await self._store.save(positions, every_s=every_s)

    async def load(self) -> None:
        """Read the positions that another process has reached, unless that was done before."""
        backoff = Backoff(self._client.clock, base_s=LOOK_BASE_S, cap_s=LOOK_CAP_S)
        while not self.has_loaded:
            try:
                async with self._requests:
                    self._positions = await self._store.load()
            except ClusterError as error:
                if not isinstance(error, NotFound | Forbidden):
                    await self._client.clock.sleep(backoff.next())
                    continue
            self.has_loaded = True

    async def _stream(self, rank: int) -> None:
        source = await self._find(rank)
        if source.key not in self._streams:  # else its pod is being deleted
            await self._new_stream(source, self._wanted.bytes_max).run()

    def _new_stream(self, source: LogSource, bytes_max: int) -> LogStream:
        before = self._streams.get(source.key)
        position = before.position if before else LogPosition.parse(self._positions.get(source.key, ""))
        stream = LogStream(
            self._client,
            source,
            position,
            output=self._output,
            mask=self._mask,
            bytes_max=bytes_max,
            ahead_bytes_max=self._ahead_bytes_max,
        )
        self._streams[source.key] = stream
        what = f"log of pod {source.pod}, container {source.container}"
        if before is not None:
            stream.note(f"{what}, continued, because the pod is being deleted")
        elif self._store.repeated_s:
            stream.note(f"{what}, continued by another triggerer: {self._repetition}")
        elif position is None:
            stream.note(f"{what}, {'while it runs' if bytes_max else 'because the pod is being deleted'}")
        else:
            stream.note(f"{what}, continued by another triggerer")
        return stream

    # -- pods that are deleted -------------------------------------------------------------------------------

    def observe(self, pods: Sequence[PodView]) -> None:
        """Read the logs of the pods that are being deleted."""
        for pod in pods:
            if not must_be_read_now(pod, self._wanted.ranks, self._wanted.kept):
                continue
            if pod.metadata.uid in self._deleted or len(self._deleted) < RANKS_MAX:
                self._deleted[pod.metadata.uid] = pod
                if self._tasks is not None:
                    self._read_ahead(pod)

    def _read_ahead(self, pod: PodView) -> None:
        assert self._tasks is not None, "the caller has checked that the streams run"
        uid, source = pod.metadata.uid, next(source for source in sources_of(pod) if source.is_main)
        stream = self._last_streams.get(uid)
        if stream is None:
            stream = self._streams.get(source.key)
            if stream is None or stream.has_read.is_set():
                stream = self._new_stream(source, bytes_max=0)
                self._tasks.create_task(stream.run())
            self._last_streams[uid] = stream
        stream.read_ahead(pod)

    def _ahead_bytes_max(self) -> int:
        return min(self._wanted.kept_bytes_max, AHEAD_BYTES_MAX) // max(len(self._last_streams), 1)

    async def wait_until_read(self, pod: PodView) -> None:
        """Wait until the log of a pod that is being deleted is read."""
        if pod.metadata.uid in self._deleted:
            await self._has_tasks.wait()
            await self._last_streams[pod.metadata.uid].has_read.wait()

    async def finish(self, within_s: float) -> None:
        """Wait until the logs of deleted pods are written, and leave out what takes longer. Does not raise."""
        for give_up, seconds in ((False, within_s), (True, END_WITHIN_S)):
            if give_up:
                for stream in self._last_streams.values():
                    stream.give_up(bytes_max=END_BYTES)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    for uid in list(self._deleted):
                        await self.wait_until_read(self._deleted[uid])
                        await self._last_streams[uid].has_written.wait()
                    return

    # -- where the logs are ----------------------------------------------------------------------------------

    async def _find(self, rank: int) -> LogSource:
        backoff = Backoff(self._client.clock, base_s=LOOK_BASE_S, cap_s=LOOK_CAP_S)
        while True:
            pods: list[PodView] = []
            with suppress(ClusterError):
                pods = await self._list_pods_of(rank)
            for pod in filter(has_started, pods):
                return next(source for source in sources_of(pod))
            await self._client.clock.sleep(backoff.next())

    async def _list_pods_of(self, rank: int) -> list[PodView]:
        """Return the pods of a rank. Only a rank that has no pod, or is in a role, costs a list of all pods.

        The index of a pod is its rank, except in a gang with roles, where each role counts from 0.
        """
        all_pods = gang_selector(self._ref.name)
        for selector in (f"{all_pods},{ANNOTATION_COMPLETION_INDEX}={rank}", all_pods):
            async with self._requests:
                views = self._client.list_views(PodView, PODS, self._ref.namespace, label_selector=selector)
                found = pods_of(self._ref, [pod async for page in views for pod in page])
            if of_rank := [pod for pod in found if rank_of(pod) == rank]:
                return of_rank
        return []
