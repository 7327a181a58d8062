"""A shuffle: every rank of a gang sends one part to each other rank. The module uses only the standard library.

Every rank waits for all other ranks, so the ranks must run at the same time.
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

CONNECT_S = 60.0  # The scheduler places the ranks together, so they start within seconds of each other.
RETRY_S = 0.1
HEADER = struct.Struct("<II")  # The rank of the sender, and the number of bytes.


def exchange(gang: Gang, parts: list[Any]) -> list[Any]:
    """Send `parts[r]` to each rank `r`, and return the parts that this rank receives, by rank of the sender.

    Raises:
        OSError: a rank did not connect within CONNECT_S, or closed its connection early.
    """
    received: list[Any] = [None] * gang.world_size
    received[gang.rank] = parts[gang.rank]
    listener = _retry(lambda: socket.create_server((gang.host, gang.master_port), backlog=gang.world_size))
    errors: list[Exception] = []

    def receive() -> None:
        try:
            listener.settimeout(CONNECT_S)
            for _ in range(gang.world_size - 1):
                with listener.accept()[0] as peer:
                    peer.settimeout(CONNECT_S)
                    sender, size = HEADER.unpack(_read(peer, HEADER.size))
                    received[sender] = json.loads(_read(peer, size))
        except OSError as error:
            errors.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    with listener:
        try:
            for rank, host in enumerate(gang.hosts):
                if rank != gang.rank:
                    _send(gang, host, json.dumps(parts[rank]).encode())
        finally:
            receiver.join()
    if errors:
        raise errors[0]
    return received


def _send(gang: Gang, host: str, content: bytes) -> None:
    with _retry(lambda: socket.create_connection((host, gang.master_port), timeout=CONNECT_S)) as peer:
        peer.sendall(HEADER.pack(gang.rank, len(content)) + content)


def _retry(connect: Any) -> socket.socket:
    """Connect until CONNECT_S have passed. DNS resolves the name of a pod shortly after the pod has started."""
    deadline = time.monotonic() + CONNECT_S
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
