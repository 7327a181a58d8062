"""The network that the nodes of one process share: pod addresses, and names from the API's Services.

One address for each pod is on the loopback device. Linux answers on all addresses of 127.0.0.0/8 without any set-up. On
other systems, every pod has the address 127.0.0.1, and two pods cannot listen on the same port.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import Listed, UnreachableError, core_path, list_and_watch
from gangjobs_sandbox.node.dns import NameTable, ServiceName
from gangjobs_sandbox.node.shim.kernel import IS_LINUX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gangjobs_sandbox.node.client import ApiClient

__all__ = ["AddressPool", "PodNetwork"]


_NETWORK = IPv4Network("127.64.0.0/10")
_SHARED = "127.0.0.1"
_BLOCK = 256


class AddressPool:
    """Allocates addresses in turn, so that a released address is not reused soon."""

    def __init__(self, seed: str = "", *, distinct: bool = IS_LINUX) -> None:
        """Create the pool. `seed` selects the first address, so that two sandboxes on one machine differ."""
        blocks = _NETWORK.num_addresses // _BLOCK
        self._distinct = distinct
        self._next = zlib.crc32(seed.encode()) % blocks * _BLOCK
        self._used: set[str] = set()

    def allocate(self) -> str:
        """Return an address that no other pod has.

        Raises:
            RuntimeError: all of the four million addresses are in use.
        """
        if not self._distinct:
            return _SHARED
        for _ in range(_NETWORK.num_addresses):
            self._next = (self._next + 1) % _NETWORK.num_addresses
            address = str(_NETWORK[self._next])
            # Addresses that end in .0 and .255 are valid here, but programs mistake them for networks and broadcasts.
            if self._next % _BLOCK not in (0, _BLOCK - 1) and address not in self._used:
                self._used.add(address)
                return address
        raise RuntimeError(f"every address of {_NETWORK} is in use")

    def reserve(self, address: str) -> None:
        """Mark the address of an adopted pod as used."""
        if self._distinct:
            self._used.add(address)

    def release(self, address: str) -> None:
        self._used.discard(address)


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
