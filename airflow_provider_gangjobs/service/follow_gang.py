"""The use case that follows a gang. It takes no client, because all followers on an event loop share their watches.

A DAG file may import this module, so the module imports no client library.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.tracking.follow import Until


async def follow(
    config: ClusterConfig,
    ref: GangRef,
    *,
    until: Until = "ended",
    deadlines: Deadlines | None = None,
    report: Callable[[Observation], None] = lambda _: None,
) -> GangEvent:
    """Wait until a gang runs or has ended, and record its outcomes in the ledger meanwhile.

    All calls on one event loop share their watches and connections, so this use case takes no client.

    :param until: What to wait for: `running` or `ended`.
    :param deadlines: How long the gang may be queued, assembling and running. By default there is no limit.
    :param report: Called with each new observation of the gang.
    """
    from airflow_provider_gangjobs.gang.state.deadlines import Deadlines

    module = _tracking or await _import_tracking()
    event: GangEvent = await module.follow(config, ref, deadlines=deadlines or Deadlines(), until=until, report=report)
    return event


_tracking: Any = None
"""The module `tracking.follow`, once the imports are complete."""
_TRACKING = "airflow_provider_gangjobs.tracking.follow"
_IMPORTED_LATER = (
    "airflow_provider_gangjobs.cluster.http.aiohttp_transport",
    "airflow_provider_gangjobs.cluster.http.bulk_patch",
)
"""What the client imports when it opens its first connection. The import of aiohttp reads the CAs of the system."""


async def _import_tracking() -> Any:
    """Import the module that follows gangs, in a thread so that other triggers on this event loop go on meanwhile.

    The first import in a process loads the client libraries, which takes half a second of CPU or more. `sys.modules`
    contains a module from the beginning of its import, so it does not say that the module can be used. The import
    system makes other threads wait until the import is complete.
    """
    global _tracking
    for name in _IMPORTED_LATER:
        await asyncio.to_thread(import_module, name)
    _tracking = await asyncio.to_thread(import_module, _TRACKING)
    return _tracking


__all__ = ["follow"]
