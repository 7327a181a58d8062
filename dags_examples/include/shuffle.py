"""A shuffle: every rank of a gang gives each other rank its part, and gets one from each. Standard library only.

All ranks must be there at once, each waits for all others: what a gang is for.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_gangjobs.decorators.gang_job import Gang

MEET_S = 60.0  # the ranks are placed together, so they start within seconds of each other
RETRY_S = 0.1
LENGTH = struct.Struct("<II")  # who sends, and how many bytes


def exchange(gang: Gang, parts: list[Any]) -> list[Any]:
    """Send `parts[r]` to each rank `r`, and return what all ranks have sent to this one, by rank.

    Raises:
        OSError: a rank did not come within a minute, or went away.
    """
    received: list[Any] = [None] * gang.world_size
    received[gang.rank] = parts[gang.rank]
    listener = _patiently(lambda: socket.create_server((gang.host, gang.master_port), backlog=gang.world_size))
    faults: list[Exception] = []

    def receive() -> None:
        try:
            listener.settimeout(MEET_S)
            for _ in range(gang.world_size - 1):
                with listener.accept()[0] as peer:
                    peer.settimeout(MEET_S)
                    sender, size = LENGTH.unpack(_read(peer, LENGTH.size))
                    received[sender] = json.loads(_read(peer, size))
        except OSError as error:
            faults.append(error)

    receiving = threading.Thread(target=receive)
    receiving.start()
    with listener:
        try:
            for rank, host in enumerate(gang.hosts):
                if rank != gang.rank:
                    _send(gang, host, json.dumps(parts[rank]).encode())
        finally:
            receiving.join()
    if faults:
        raise faults[0]
    return received


def _send(gang: Gang, host: str, content: bytes) -> None:
    with _patiently(lambda: socket.create_connection((host, gang.master_port), timeout=MEET_S)) as peer:
        peer.sendall(LENGTH.pack(gang.rank, len(content)) + content)


def _patiently(connect: Any) -> socket.socket:
    """A name is known a moment after its pod has started, and its program listens a moment later."""
    deadline = time.monotonic() + MEET_S
    while True:
        try:
            return connect()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def _read(peer: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        chunk = peer.recv(size - len(read))
        if not chunk:
            raise ConnectionError("a rank closed its connection early")
        read += chunk
    return read
