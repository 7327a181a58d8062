"""The network that the nodes of one process share: pod addresses, and names from the API's Services."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.addresses import AddressPool
from gangjobs_sandbox.node.client import UnreachableError, core_path
from gangjobs_sandbox.node.dns import NameTable, ServiceName
from gangjobs_sandbox.node.watch import Listed, list_and_watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gangjobs_sandbox.node.client import ApiClient

__all__ = ["PodNetwork"]


class PodNetwork:
    """The addresses and names of all pods of this process."""

    def __init__(self, seed: str = "") -> None:
        """Create the network. `seed`, such as the folder of the sandbox, separates two sandboxes on one machine."""
        self.addresses = AddressPool(seed)
        self.names = NameTable()
        self._users = 0
        self._watching: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching_services(self, client: ApiClient) -> AsyncIterator[None]:
        """Watch the Services while at least one node is in this context. All nodes share one watch."""
        self._users += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_services(client), name="watch of services")
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                watching, self._watching = self._watching, None
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def fetch_service(self, client: ApiClient, namespace: str, service: str) -> None:
        """Fetch a Service that the watch has not delivered yet.

        Without its Service, a pod could not listen on its own name. If the request fails, the
        watch delivers the Service later.
        """
        if (namespace, service) in self.names.services():
            return
        try:
            found = await client.get(core_path("services", service, namespace=namespace))
        except (StatusError, UnreachableError):
            return
        self.names.set_service(namespace, service, ServiceName.of(found))

    async def _watch_services(self, client: ApiClient) -> None:
        async for change in list_and_watch(client, core_path("services"), {}):
            if isinstance(change, Listed):
                known = {_key(item) for item in change.items}
                for namespace, name in self.names.services() - known:
                    self.names.set_service(namespace, name, None)
                for item in change.items:
                    self.names.set_service(*_key(item), ServiceName.of(item))
            else:
                gone = change.kind == "DELETED"
                self.names.set_service(*_key(change.item), None if gone else ServiceName.of(change.item))
            self.names.flush()


def _key(service: dict[str, Any]) -> tuple[str, str]:
    return service["metadata"]["namespace"], service["metadata"]["name"]
