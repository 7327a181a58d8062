"""Clients of the API server, one for each cluster, which requests share.

Idle clients are kept for a while, since an exec plugin may need a second to return a token.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.service import GangService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

REQUEST_RETRY_S: Final = 3.0
"""How long a client repeats a request that got no answer. The time is short because a user waits."""
CLIENT_IDLE_S: Final = 60.0
"""How long an unused client is kept."""


@dataclass
class _CachedClient:
    """The use cases on one client, the number of its present users, and the time of its last use."""

    service: GangService
    users: int = 0
    used_at: float = 0.0


@dataclass
class SharedClients:
    """The clients of one event loop."""

    clock: Callable[[], float] = time.monotonic
    _clients: dict[str, _CachedClient] = field(default_factory=dict, init=False)

    @asynccontextmanager
    async def service(self, config: ClusterConfig) -> AsyncIterator[GangService]:
        """Lend the use cases of a cluster for the duration of the block."""
        await self._close_idle()
        client = self._clients.get(config.key)
        if client is None:
            client = _CachedClient(GangService(Client(config, retry_for_s=REQUEST_RETRY_S)))
            self._clients[config.key] = client
        client.users += 1
        try:
            yield client.service
        finally:
            client.users -= 1
            client.used_at = self.clock()

    async def aclose(self) -> None:
        """Close all clients, which must have no users."""
        while self._clients:
            _, client = self._clients.popitem()
            await client.service.client.aclose()

    async def _close_idle(self) -> None:
        idle = [
            key
            for key, client in self._clients.items()
            if not client.users and self.clock() > client.used_at + CLIENT_IDLE_S
        ]
        # Other requests run during each await, so no client that they can find is closed.
        for unused in [self._clients.pop(key) for key in idle]:
            await unused.service.client.aclose()


__all__ = ["SharedClients"]
