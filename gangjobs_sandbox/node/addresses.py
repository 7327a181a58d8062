"""Allocates loopback addresses to pods: one address for each pod if the operating system has more than one.

Linux answers on all addresses of 127.0.0.0/8 without any set-up. On other systems, every pod has the address 127.0.0.1,
and two pods cannot listen on the same port.
"""

from __future__ import annotations

import zlib
from ipaddress import IPv4Network

from gangjobs_sandbox.node.shim.kernel import IS_LINUX

__all__ = ["AddressPool"]

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
