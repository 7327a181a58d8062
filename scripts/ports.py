"""Choose free ports for programs that need their port before they start."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import closing
from pathlib import Path

PORT_MIN, PORT_END = 20_000, 32_768
"""A range below the ephemeral ports of Linux. Between the choice of an ephemeral port and the program's own bind, the
kernel may assign that port to any connection. The kernel does not assign ports of this range by itself."""
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOCKS = Path(tempfile.gettempdir()) / f"gangjobs-ports-{os.getuid()}"
_locks: dict[int, int] = {}


def free_port(preferred: int = 0) -> int:
    """Return a free port that no other living process has chosen: the preferred port if possible.

    The process keeps a lock on the port, because the program that binds the port may start only seconds later.
    """
    candidates = range(PORT_MIN, _first_ephemeral_port())
    for port in [*([preferred] if preferred else []), *random.sample(candidates, k=min(100, len(candidates)))]:
        if _is_free(port) and _lock(port):
            return port
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def _first_ephemeral_port() -> int:
    try:
        return min(PORT_END, int(EPHEMERAL_RANGE.read_text().split()[0]))
    except (OSError, ValueError):
        return PORT_END


def _lock(port: int) -> bool:
    """Lock the port until this process ends. Return whether the lock was free."""
    if port in _locks:
        return False
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(LOCKS / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _locks[port] = lock
    return True


def _is_free(port: int) -> bool:
    """Return whether a program can bind the port, also on all addresses, as Airflow's log servers do."""
    for address in ("127.0.0.1", ""):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
