"""Ports of this machine for programs that have to be told theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import closing
from pathlib import Path

LOWEST, BEYOND = 20_000, 32_768
"""Below what Linux gives out by itself. Between the choice and the program's own bind, a port from there may go to
anybody who connects somewhere or asks for any port; these go only to those who ask for them by number."""
LINUX_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()


def free_port(preferred: int = 0) -> int:
    """A port that nobody listens on, and that this process was not given before: the preferred one if possible."""
    candidates = range(LOWEST, _first_of_the_kernel())
    for port in [*([preferred] if preferred else []), *random.sample(candidates, k=min(100, len(candidates)))]:
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def _first_of_the_kernel() -> int:
    try:
        return min(BEYOND, int(LINUX_RANGE.read_text().split()[0]))
    except (OSError, ValueError):
        return BEYOND


def _is_free(port: int) -> bool:
    """Also on all addresses at once, as Airflow's log servers listen."""
    for address in ("127.0.0.1", ""):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
