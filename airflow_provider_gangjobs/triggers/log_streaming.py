"""Streams logs of ranks into the log of the task, beside the wait for the gang.

The wait starts the streams when ranks begin to run, and stops them when it has the event. Nothing that happens to a
stream reaches the wait, with one exception: a pod that is being deleted is released some seconds later, and the event
is sent later, while the log of the pod is being read, because nobody can read the log afterwards.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.hooks.masking import mask
from airflow_provider_gangjobs.triggers.log_channel import log_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.logs.gang_stream import GangStreams
    from airflow_provider_gangjobs.triggers.args import TriggerArgs

STOP_S: Final = 1.0
SAVE_S: Final = 2.0
"""A triggerer that stops waits for its triggers, and a user who kills a task waits for the deletion of the gang."""
HOLD_S: Final = 10.0
"""How long the release of a pod waits for its log, after the outcome of the pod is recorded."""
FINISH_S: Final = 60.0
"""How long an event waits until the logs of deleted pods are in the log of the task. Airflow reads some hundred lines a
second from a triggerer, and lines that it reads after the event are missing."""
LOAD_S: Final = 10.0
"""How long an event waits for the positions that an earlier process has saved."""


class LogStreaming:
    """The streams of one wait, as one asyncio task. The harvest uses it as its `LogReader`."""

    __slots__ = (
        "_args",
        "_deleted",
        "_has_arrived",
        "_has_streams",
        "_holds",
        "_log",
        "_saves",
        "_streams",
        "_task",
        "config",
    )

    def __init__(self, args: TriggerArgs, log: Logger) -> None:
        self._args = args
        self._log = log
        self.config: ClusterConfig | None = None
        """The cluster of the gang, once it is known."""
        self._deleted: dict[str, PodView] = {}
        """The pods that are being deleted, and whose logs are wanted, by uid."""
        self._holds: dict[str, asyncio.Task[None]] = {}
        """The waits for the logs of these pods, also those that are over."""
        self._saves = False
        self._has_arrived = True
        self._has_streams: asyncio.Event | None = None
        self._streams: GangStreams | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def positions(self) -> dict[str, str]:
        """How far each log was streamed. Empty if lines may be missing, so that the logs are copied as a whole."""
        return self._streams.positions if self._streams is not None and self._has_arrived else {}

    @property
    def whole_logs(self) -> tuple[str, ...]:
        """The logs that were streamed to their end."""
        return tuple(self._streams.whole_logs) if self._streams is not None and self._has_arrived else ()

    def start(self) -> None:
        """Start the streams, if they are wanted and have not started."""
        if self._args.stream_ranks:
            self._start()

    def _start(self) -> None:
        if self._task is None and self.config is not None:
            self._has_streams = asyncio.Event()
            self._task = asyncio.create_task(self._run(self.config), name=f"logs of {self._args.name}")

    # -- pods that are deleted -------------------------------------------------------------------------------

    def observe(self, pods: Sequence[PodView]) -> None:
        """Read the logs of the pods that are being deleted, and whose logs the task wants."""
        if all(pod.metadata.deletion_timestamp is None for pod in pods):
            return
        wanted = [pod for pod in pods if self._must_be_read_now(pod)]
        self._deleted |= {pod.metadata.uid: pod for pod in wanted}
        if wanted:
            self._start()
            if self._streams is not None:
                self._streams.observe(wanted)

    def _must_be_read_now(self, pod: PodView) -> bool:
        from airflow_provider_gangjobs.tracking.logs.sources import must_be_read_now

        return must_be_read_now(pod, self._args.stream_ranks, Logs(self._args.kept_logs))

    def notify_when_read(self, pod: PodView, notify: Callable[[str], None]) -> bool:
        """Return whether the log of a pod is being read. If so, call `notify` when it is, at most `HOLD_S` later."""
        uid = pod.metadata.uid
        if uid not in self._deleted or self._task is None:
            return False
        if uid not in self._holds:
            self._holds[uid] = asyncio.create_task(self._wait_until_read(pod), name=f"log of {pod.metadata.name}")
        hold = self._holds[uid]
        if hold.done():
            return False
        hold.add_done_callback(lambda _: notify(uid))
        return True

    async def _wait_until_read(self, pod: PodView) -> None:
        assert self._has_streams is not None, "the caller has checked that the streams have started"
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._has_streams.wait()
                if self._streams is not None:
                    await self._streams.wait_until_read(pod)

    async def finish(self, within_s: float) -> None:
        """Wait until the logs of the pods that were deleted are in the log of the task, as far as the time allows."""
        if self._streams is not None and self._deleted:
            await self._streams.finish(within_s)

    # -- the end ---------------------------------------------------------------------------------------------

    async def stop(self, *, save: bool, has_run: bool = False) -> None:
        """Stop the streams. Takes at most `STOP_S`, and `SAVE_S` to save.

        Without `save`, the method also waits until Airflow has read the lines of this trigger (see `log_channel`).

        :param save: Whether to save the positions, for the process that continues the streams.
        :param has_run: Whether ranks have run, so that an earlier process may have streamed their logs.
        """
        self._saves = save
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_S + SAVE_S * save)
        for hold in self._holds.values():
            hold.cancel()
        if save:
            return
        if has_run and self._args.stream_ranks:
            await self._load_positions()
        self._has_arrived = await log_channel().drain()
        if not self._has_arrived and self._streams is not None:
            self._log.warning(
                "Airflow may not have read all streamed lines of gang %s, so its logs are copied as a whole, "
                "and lines appear a second time",
                self._args.ref,
            )

    async def _load_positions(self) -> None:
        """Read how far an earlier process has streamed, if the gang ended before this process began to stream."""
        from airflow_provider_gangjobs.cluster.informer import informers

        if self.config is not None and (self._streams is None or not self._streams.has_loaded):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOAD_S), informers().client(self.config) as client:
                    streams = self._new_streams(client)
                    await streams.load()
                    self._streams = streams
        if self._streams is not None:
            self.write(self._streams.notes)

    async def _run(self, config: ClusterConfig) -> None:
        from airflow_provider_gangjobs.cluster.informer import informers

        try:
            async with informers().client(config) as client:
                streams = self._new_streams(client)
                streams.observe(list(self._deleted.values()))
                self._streams = streams
                if self._has_streams is not None:
                    self._has_streams.set()
                try:
                    await streams.run()
                finally:
                    await self._save()
        except Exception:  # a defect of a stream must not end the wait for the gang
            self._log.exception("The logs of gang %s are not streamed any more", self._args.ref)

    def _new_streams(self, client: Client) -> GangStreams:
        from airflow_provider_gangjobs.tracking.logs.gang_stream import GangStreams
        from airflow_provider_gangjobs.tracking.logs.position_store import PositionStore

        args = self._args
        # Each deferral of a try has a trigger of its own, whose log may replace the log of the one before.
        store = PositionStore(client, args.ref, f"{args.claim}/{args.tracking_errors}")
        return GangStreams(
            client,
            args.ref,
            args.stream_ranks,
            store,
            output=self,
            mask=mask,
            bytes_max=args.stream_bytes_max,
            kept=Logs(args.kept_logs),
            kept_bytes_max=max(args.kept_bytes_max, args.stream_bytes_max),
        )

    async def _save(self) -> None:
        if self._saves and self._streams is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_S):
                    await self._streams.save()

    def write(self, lines: Sequence[str]) -> None:
        """Write lines of a stream into the log of the task."""
        for line in lines:
            self._log.info("%s", line)

    async def wait_until_free(self) -> None:
        """Wait until the triggerer can write further lines without blocking its event loop."""
        await log_channel().wait_until_free()

    async def drain(self, within_s: float) -> bool:
        """Wait at most this long until Airflow has read all lines of this process. Return false if it may not have."""
        return await log_channel().drain(within_s)
