"""Sweeper: the task that sweeps one namespace while gangs are followed there, from the informers of the followers.

A look sends no request unless there is something to do: the watches of Jobs and pods exist for the followers anyway.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.informer import InformerClosedError, informers
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.kube.views import JobView, PodView
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.sweeping.leases import Leases
from airflow_provider_gangjobs.sweeping.sweep import Sweep, log_swept
from airflow_provider_gangjobs.sweeping.views import InformerView
from airflow_provider_gangjobs.tracking.gang_watch import gang_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 60.0
"""Less if the grace is shorter."""
LOOKS_PER_CONNECTION: Final = 10
"""After so many looks the connection is read again, because its credentials may have changed."""


class NamespaceSweeper:
    """Sweeps one namespace until nobody follows a gang there and no gang is left that nobody follows."""

    def __init__(
        self,
        sweep: Sweep,
        namespace: str,
        *,
        read_config: Callable[[], Awaitable[ClusterConfig]],
        followed: Callable[[], Collection[GangRef]],
        clock: Clock | None = None,
    ) -> None:
        """
        :param read_config: Reads the connection.
        :param followed: Returns the gangs that this process follows in the namespace.
        """
        self._sweep = sweep
        self._namespace = namespace
        self._read_config = read_config
        self._followed = followed
        self._clock = clock or Clock()
        self._leases = Leases(namespace, sweep.installation, clock=sweep.clock)

    async def run(self) -> None:
        """Sweep until there is nothing to do. Raises what `read_config` raises."""
        while True:
            config = await self._read_config()
            client = informers().acquire_client(config)
            try:
                if await self._sweep_over(GangService(client)):
                    return
            finally:
                await informers().release_client(config.key)

    async def _sweep_over(self, gangs: GangService) -> bool:
        """Look `LOOKS_PER_CONNECTION` times over this client. Returns whether there is nothing left to do."""
        client, namespace = gangs.client, self._namespace
        self._sweep.others = lambda: self._leases.others(client)
        async with (
            informers().acquire(client, JOBS, namespace, LABEL_GANG, decode=JobView, index=gang_of) as jobs,
            informers().acquire(client, PODS, namespace, LABEL_GANG, decode=PodView, index=gang_of) as pods,
        ):
            view = InformerView(jobs, pods)
            for _ in range(LOOKS_PER_CONNECTION):
                await self._clock.sleep(min(LOOK_EVERY_S, max(self._sweep.grace.total_seconds(), 1.0)))
                try:
                    is_synced = await jobs.synced(0) and await pods.synced(0)
                except InformerClosedError:
                    return False
                if not is_synced:
                    continue
                await self._leases.renew(client, self._followed())
                try:
                    log_swept(await self._sweep.look(gangs, view))
                except Exception:  # a defect must not end the sweeps of a triggerer that runs for months
                    log.exception("The sweep of namespace %s failed, and is repeated", namespace)
                    continue
                if not self._followed() and not self._sweep.has_more:
                    await self._leases.remove(client)
                    return True
        return False


__all__ = ["NamespaceSweeper"]
