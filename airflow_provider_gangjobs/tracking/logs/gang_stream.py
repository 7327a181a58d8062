"""Streams the logs of chosen ranks of one gang, in an asyncio task of its own for each rank."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.http.log_parser import LogPosition
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.labels import ANNOTATION_COMPLETION_INDEX
from airflow_provider_gangjobs.gang.selectors import gang_selector
from airflow_provider_gangjobs.gang.state.pods import has_started, pods_of, rank_of
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.tracking.logs.limits import StreamLimits
from airflow_provider_gangjobs.tracking.logs.rank_stream import LogStream
from airflow_provider_gangjobs.tracking.logs.sources import sources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.tracking.logs.output import LineOutput
    from airflow_provider_gangjobs.tracking.logs.position_store import PositionStore
    from airflow_provider_gangjobs.tracking.logs.sources import LogSource

LOOK_BASE_S: Final = 1.0
LOOK_CAP_S: Final = 30.0
DRAIN_S: Final = 5.0
"""How long a stream waits until its lines are read, before it saves its position."""
DRAIN_AT_END_S: Final = 0.5
"""How long a process that ends waits until its lines are read. Airflow reads them also while the process ends."""


class GangStreams:
    """The streams of one gang. `run` ends only when it is cancelled.

    :param output: The log of the task.
    :param mask: Returns a text with its secrets replaced.
    """

    def __init__(
        self,
        client: Client,
        ref: GangRef,
        ranks: Sequence[int],
        store: PositionStore,
        *,
        output: LineOutput,
        mask: Callable[[str], str],
        bytes_max: int,
    ) -> None:
        self._client = client
        self._ref = ref
        self._ranks = ranks
        self._store = store
        self._output = output
        self._mask = mask
        self._bytes_max = bytes_max
        self._limits = loop_local(StreamLimits)
        self._requests = self._limits.requests_of(client)
        self._positions: dict[str, str] = {}
        self._streams: dict[str, LogStream] = {}

    @property
    def positions(self) -> dict[str, str]:
        """How far each log was streamed, by `LogSource.key`, in the form of `GangEvent.streamed`."""
        reached = {key: str(stream.position) for key, stream in self._streams.items() if stream.position is not None}
        return self._positions | reached

    async def run(self) -> None:
        """Stream the logs, and save their positions from time to time."""
        limits, clock = self._limits, self._client.clock
        self._positions = await self._load()
        limits.gangs += 1
        try:
            # From here on, the positions of the process before are not the last ones.
            await self._save(limits.save_every_s)
            async with asyncio.TaskGroup() as tasks:
                for rank in self._ranks:
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

    async def _load(self) -> dict[str, str]:
        backoff = Backoff(self._client.clock, base_s=LOOK_BASE_S, cap_s=LOOK_CAP_S)
        while True:
            try:
                async with self._requests:
                    return await self._store.load()
            except (NotFound, Forbidden):
                return {}
            except ClusterError:
                await self._client.clock.sleep(backoff.next())

    async def _stream(self, rank: int) -> None:
        source = await self._find(rank)
        position = LogPosition.parse(self._positions.get(source.key, ""))
        stream = LogStream(
            self._client,
            source,
            position,
            output=self._output,
            mask=self._mask,
            limits=self._limits,
            bytes_max=self._bytes_max,
        )
        self._streams[source.key] = stream
        what = f"log of pod {source.pod}, container {source.container}"
        if position is None:
            stream.note(f"{what}, while it runs")
        elif not self._store.repeated_s:
            stream.note(f"{what}, continued by another triggerer")
        else:
            stream.note(
                f"{what}, continued by another triggerer, after the one before was killed: the lines that follow, of "
                f"about {self._store.repeated_s:.0f} seconds, may appear a second time"
            )
        await stream.run()

    async def _find(self, rank: int) -> LogSource:
        """Wait until the program of a rank has started, and return its log."""
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
            found = pods_of(self._ref, await self._list(selector))
            if of_rank := [pod for pod in found if rank_of(pod) == rank]:
                return of_rank
        return []

    async def _list(self, selector: str) -> list[PodView]:
        async with self._requests:
            views = self._client.list_views(PodView, PODS, self._ref.namespace, label_selector=selector)
            return [pod async for page in views for pod in page]
