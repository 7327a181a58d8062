"""The use case that follows a gang. It takes no client, because all followers on an event loop share their watches.

A DAG file may import this module, so the module imports no client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.tracking.follow import FollowUntil
    from airflow_provider_gangjobs.tracking.harvest.harvester import LogReader


async def follow(
    config: ClusterConfig,
    ref: GangRef,
    *,
    until: FollowUntil = "ended",
    deadlines: Deadlines | None = None,
    report: Callable[[Observation], None] = lambda _: None,
    logs: LogReader | None = None,
) -> GangEvent:
    """Wait until a gang runs or has ended, and record its outcomes in the ledger meanwhile.

    All calls on one event loop share their watches and connections, so this use case takes no client.

    :param until: What to wait for: `running` or `ended`.
    :param deadlines: How long the gang may be queued, assembling and running. By default there is no limit.
    :param report: Called with each new observation of the gang.
    :param logs: Reads logs of pods that are being deleted, before the pods are released.
    """
    from airflow_provider_gangjobs.cluster.loop_local import CLIENT, import_in_thread

    await import_in_thread(*CLIENT, "airflow_provider_gangjobs.tracking.follow")
    from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
    from airflow_provider_gangjobs.tracking import follow as tracking

    return await tracking.follow(config, ref, deadlines=deadlines or Deadlines(), until=until, report=report, logs=logs)


__all__ = ["follow"]
