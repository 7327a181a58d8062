"""The clusters of the pages: the namespaces that options of `[gangjobs]` name, and one client for each cluster.

An option names connections and namespaces: `gpu, gpu/team, cpu/*`. Requests to Airflow's API server share the clients.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.airflow_api.configuration import SECTION, conf
from airflow_provider_gangjobs.airflow_api.connection import DEFAULT_CONN_ID
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.service import GangService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig


OWN_NAMESPACE: Final = ""
"""The namespace that the connection names, or else `default`."""
ALL_NAMESPACES: Final = "*"


@dataclass(frozen=True, order=True)
class ListSource:
    """A namespace of the cluster of a connection, or all of its namespaces."""

    conn_id: str
    namespace: str = OWN_NAMESPACE
    """`OWN_NAMESPACE`, `ALL_NAMESPACES`, or a name."""

    def __str__(self) -> str:
        return f"{self.conn_id}/{self.namespace}" if self.namespace else self.conn_id

    @classmethod
    def parse(cls, text: str) -> ListSource:
        """Read one item, such as `gpu`, `gpu/team` or `gpu/*`."""
        conn_id, _, namespace = text.strip().partition("/")
        return cls(conn_id.strip(), namespace.strip())

    @classmethod
    def of_task(cls, rendered: Any) -> ListSource:
        """Return where the gang of a task is, by the rendered fields of the task."""
        values = rendered if isinstance(rendered, dict) else {}
        conn_id, namespace = (values.get(name) for name in ("kubernetes_conn_id", "namespace"))
        return cls(
            conn_id if isinstance(conn_id, str) and conn_id else DEFAULT_CONN_ID,
            namespace if isinstance(namespace, str) else "",
        )


def named_sources(option: str) -> list[ListSource]:
    """Return what an option of the section names; nothing if it is not set."""
    text = str(conf.get(SECTION, option, fallback="") or "")
    return [ListSource.parse(item) for item in text.split(",") if item.strip()]


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


async def read_connection(conn_id: str, *, must_exist: bool = False) -> ClusterConfig:
    """Read the connection in a thread, because the API server reads it from the database or a secrets backend."""
    return await asyncio.to_thread(GangJobHook(conn_id, must_exist=must_exist).config)


@dataclass
class SharedClients:
    """The clients of one event loop. Connections with the same cluster, credentials and defaults share a client."""

    read_config: Callable[..., Awaitable[ClusterConfig]] = read_connection
    """Takes the arguments of `read_connection`."""
    clock: Callable[[], float] = time.monotonic
    _clients: dict[tuple[Any, ...], _CachedClient] = field(default_factory=dict, init=False)

    @asynccontextmanager
    async def service(self, conn_id: str, *, must_exist: bool = False) -> AsyncIterator[GangService]:
        """Lend the use cases of the cluster of a connection for the duration of the block."""
        config = await self.read_config(conn_id, must_exist=must_exist)
        await self._close_idle()
        # The service takes the namespace, the scheduler, the queue and the links of its gangs from the configuration.
        defaults = (config.namespace, config.gang_scheduler, config.queue_name, config.queue_priority, config.links)
        key = (config.key, *defaults)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _CachedClient(GangService(Client(config, retry_for_s=REQUEST_RETRY_S)))
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
