"""Streams logs of ranks into the log of the task, beside the wait for the gang.

The wait starts the streams when ranks begin to run, and stops them when it has the event. Nothing that happens to a
stream reaches the wait.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.hooks.masking import mask
from airflow_provider_gangjobs.triggers.log_channel import log_channel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.tracking.logs.gang_stream import GangStreams
    from airflow_provider_gangjobs.triggers.args import TriggerArgs

STOP_S: Final = 1.0
SAVE_S: Final = 2.0
"""A triggerer that stops waits for its triggers, and a user who kills a task waits for the deletion of the gang."""


class LogStreaming:
    """The streams of one wait, as one asyncio task."""

    __slots__ = ("_args", "_has_arrived", "_log", "_saves", "_streams", "_task")

    def __init__(self, args: TriggerArgs, log: Logger) -> None:
        self._args = args
        self._log = log
        self._saves = False
        self._has_arrived = True
        self._streams: GangStreams | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def positions(self) -> dict[str, str]:
        """How far each log was streamed. Empty if lines may be missing, so that the logs are copied as a whole."""
        return self._streams.positions if self._streams is not None and self._has_arrived else {}

    def start(self, config: ClusterConfig) -> None:
        """Start the streams, if they are wanted and have not started."""
        if self._args.stream_ranks and self._task is None:
            self._task = asyncio.create_task(self._run(config), name=f"logs of {self._args.name}")

    async def stop(self, *, save: bool) -> None:
        """Stop the streams. Takes at most `STOP_S`, and `SAVE_S` to save.

        Without `save`, the method also waits until Airflow has read the lines of this trigger (see `log_channel`).

        :param save: Whether to save the positions, for the process that continues the streams.
        """
        self._saves = save
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_S + SAVE_S * save)
        if not save:
            self._has_arrived = await log_channel().drain()
            if not self._has_arrived and self._streams is not None:
                self._log.warning(
                    "Airflow may not have read all streamed lines of gang %s, so its logs are copied as a whole, "
                    "and lines appear a second time",
                    self._args.ref,
                )

    async def _run(self, config: ClusterConfig) -> None:
        from airflow_provider_gangjobs.cluster.informer import informers
        from airflow_provider_gangjobs.tracking.logs.gang_stream import GangStreams
        from airflow_provider_gangjobs.tracking.logs.position_store import PositionStore

        args = self._args
        try:
            async with informers().client(config) as client:
                # Each deferral of a try has a trigger of its own, whose log may replace the log of the one before.
                store = PositionStore(client, args.ref, f"{args.claim}/{args.tracking_errors}")
                self._streams = GangStreams(
                    client,
                    args.ref,
                    args.stream_ranks,
                    store,
                    output=self,
                    mask=mask,
                    bytes_max=args.stream_bytes_max,
                )
                try:
                    await self._streams.run()
                finally:
                    await self._save()
        except Exception:  # a defect of a stream must not end the wait for the gang
            self._log.exception("The logs of gang %s are not streamed any more", args.ref)

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
