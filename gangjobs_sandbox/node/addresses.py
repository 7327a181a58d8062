"""Pod addresses: loopback addresses, one per pod where the operating system has more than one.

Linux answers on all of 127.0.0.0/8 without any set-up. Elsewhere every pod is 127.0.0.1, and two
pods cannot listen on one port.
"""

from __future__ import annotations

import zlib
from ipaddress import IPv4Network

from .shim.kernel import IS_LINUX

__all__ = ["AddressPool"]

_NETWORK = IPv4Network("127.64.0.0/10")
_SHARED = "127.0.0.1"
_BLOCK = 256


class AddressPool:
    """Hands out addresses in turn, so that a released one is not used again soon."""

    def __init__(self, seed: str = "", *, distinct: bool = IS_LINUX) -> None:
        """`seed` moves the start, so that two sandboxes on one machine do not share addresses."""
        blocks = _NETWORK.num_addresses // _BLOCK
        self._distinct = distinct
        self._next = zlib.crc32(seed.encode()) % blocks * _BLOCK
        self._used: set[str] = set()

    def allocate(self) -> str:
        """An address that no living pod has.

        Raises:
            RuntimeError: four million pods are alive.
        """
        if not self._distinct:
            return _SHARED
        for _ in range(_NETWORK.num_addresses):
            self._next = (self._next + 1) % _NETWORK.num_addresses
            address = str(_NETWORK[self._next])
            # .0 and .255 are valid here, but programs mistake them for networks and broadcasts.
            if self._next % _BLOCK not in (0, _BLOCK - 1) and address not in self._used:
                self._used.add(address)
                return address
        raise RuntimeError(f"every address of {_NETWORK} is in use")

    def reserve(self, address: str) -> None:
        """Keep an address that a pod already has."""
        if self._distinct:
            self._used.add(address)

    def release(self, address: str) -> None:
        self._used.discard(address)
