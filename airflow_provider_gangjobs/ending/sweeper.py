"""Sweeper: the task that sweeps one namespace while gangs are followed there, from the informers of the followers.

A look sends no request to Kubernetes unless there is something to do: the watches of Jobs and pods exist for the
followers anyway. The informers forget the gangs that are settled, because an ended Job may be kept for a week.
`sweep_totals` counts what all sweeps of one event loop have done, for metrics.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.informer import InformerClosedError, informers
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.ending.sweep import NamespaceView, Sweep, log_swept
from airflow_provider_gangjobs.gang.state.ownership import SweepAction
from airflow_provider_gangjobs.kube.views import JobView, PodView
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef


_BY_ACTION: Final = {
    SweepAction.DELETE_LIVE: "ended",
    SweepAction.RELEASE: "released",
    SweepAction.DELETE_DELIVERED: "deleted",
    SweepAction.MARK_DELIVERED: "delivered",
    SweepAction.FINISH: "finished",
}
"""The counter of each action, which counts gangs."""
COUNTERS: Final = ("looks", *_BY_ACTION.values(), "forgotten", "failures")
"""Looks at a namespace; the gangs by action; gangs that the informers dropped from memory; errors."""


def sweep_totals() -> Counter[str]:
    """Return the counters of all sweeps of the running loop, also of those that are over. None ever decreases."""
    return loop_local(_totals)


def _totals() -> Counter[str]:
    return Counter(dict.fromkeys(COUNTERS, 0))


log = logging.getLogger(__name__)

LOOKS_PER_CONNECTION: Final = 10
"""After so many looks the connection is read again, because its credentials may have changed."""
LINGER_S: Final = 3600.0
"""How long a namespace is swept after the last gang that was followed there. A worker that was stopped may submit the
gang of a task that has ended meanwhile."""


@dataclass(kw_only=True)
class NamespaceSweeper:
    """Sweeps one namespace until, for `LINGER_S`, nobody follows a gang there and no gang is left to be swept."""

    sweep: Sweep
    namespace: str
    read_config: Callable[[], Awaitable[ClusterConfig]]
    """Reads the connection."""
    followed: Callable[[], Collection[GangRef]]
    """Returns the gangs that this process follows in the namespace."""
    index: Callable[[JobView | PodView], str | None]
    """Returns the name of an object's gang: the index of the informers of the followers."""
    _idle_since_s: float | None = field(default=None, init=False)

    async def run(self) -> None:
        """Sweep until there is nothing to do. Raises what `read_config` raises if nobody follows a gang."""
        while True:
            try:
                config = await self.read_config()
            except Exception:  # a secrets backend may raise anything
                if not self.followed():
                    raise
                await self.sweep.clock.sleep(self.sweep.look_every_s)
                continue
            async with informers().client(config) as client:
                if await self._sweep_over(client):
                    return

    async def _sweep_over(self, client: Client) -> bool:
        """Look `LOOKS_PER_CONNECTION` times over this client. Returns whether there is nothing left to do."""
        namespace, index = self.namespace, self.index
        self.sweep.forget = lambda gang: self._forget(client.config.key, gang)
        async with (
            informers().acquire(client, JOBS, namespace, LABEL_GANG, decode=JobView, index=index) as jobs,
            informers().acquire(client, PODS, namespace, LABEL_GANG, decode=PodView, index=index) as pods,
        ):
            for _ in range(LOOKS_PER_CONNECTION):
                await self.sweep.clock.sleep(self.sweep.look_every_s)
                try:
                    is_synced = await jobs.synced(0) and await pods.synced(0)
                except InformerClosedError:
                    return False
                if not is_synced:
                    continue
                totals = sweep_totals()
                totals["looks"] += 1
                try:
                    swept = await self.sweep.run(client, NamespaceView.of_informers(jobs, pods))
                    log_swept(swept)
                    totals.update("failures" if one.error else _BY_ACTION[one.decision.action] for one in swept)
                except Exception:  # a defect must not end the sweeps of a triggerer that runs for months
                    log.exception("The sweep of namespace %s failed, and is repeated", namespace)
                    totals["failures"] += 1
                    continue
                if self.followed() or self.sweep.has_more:
                    self._idle_since_s = None
                elif self._has_idled():
                    return True
        return False

    def _has_idled(self) -> bool:
        now_s = self.sweep.clock.monotonic()
        self._idle_since_s = now_s if self._idle_since_s is None else self._idle_since_s
        return now_s - self._idle_since_s >= LINGER_S

    def _forget(self, cluster: str, gang: str) -> None:
        informers().forget(cluster, self.namespace, self.index, gang)
        sweep_totals()["forgotten"] += 1
