"""An all-reduce over plain TCP.

The topology is a star: rank 0 listens on MASTER_ADDR:MASTER_PORT, and every other rank has one connection to rank 0.
In each round all ranks send a vector, rank 0 adds the vectors in rank order, and every rank receives the same sum, bit
for bit. A rank cannot finish a round alone, so the ranks must run at the same time.

If a rank exits, the other ranks fail: rank 0 detects the closed connection and sends the reason to the other ranks.
A frame is a 4-byte length, a 1-byte kind and a body: float64 for a vector, an int32 for a hello, text for an abort.
"""

import os
import socket
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np

ASSEMBLE_S = 60.0  # The scheduler places the ranks together, so they start within seconds of each other.
ROUND_S = 60.0  # A round takes milliseconds. A longer round means that a host is lost.
RETRY_S = 0.1
CLOSE_S = 10.0
FRAME_BYTES_MAX = 64 * 1024 * 1024  # Far above any gradient here. A longer frame comes from another program.
HEADER = struct.Struct("<IB")
RANK = struct.Struct("<i")
HELLO, VECTOR, ABORT = 1, 2, 3


class GangError(RuntimeError):
    """A rank is missing, so no rank can make another step."""


class Gang:
    """The connections between the ranks of one run; a context manager.

    Raises:
        GangError: a rank did not connect within ASSEMBLE_S, or was lost later.
    """

    def __init__(self, rank: int, world_size: int, address: str, port: int) -> None:
        self.rank, self.world_size = rank, world_size
        # Rank 0 has a connection to each other rank. Any other rank has one connection, to rank 0.
        self._peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + ASSEMBLE_S
        if world_size > 1:
            if rank == 0:
                self._accept(address, port, deadline)
            else:
                self._connect(address, port, deadline)

    @classmethod
    def from_environment(cls) -> Self:
        """Join the gang of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without them the gang has one rank."""
        env = os.environ
        return cls(
            rank=int(env.get("RANK", "0")),
            world_size=int(env.get("WORLD_SIZE", "1")),
            address=env.get("MASTER_ADDR", "localhost"),
            port=int(env.get("MASTER_PORT", "29500")),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._broadcast_abort(str(error) if isinstance(error, GangError) else f"rank {self.rank} failed: {error!r}")
        for peer in self._peers.values():
            peer.close()

    def sum(self, vector: np.ndarray) -> np.ndarray:
        """Return the sum of the vectors of all ranks. Every rank receives the same bits.

        Raises:
            GangError: a rank closed its connection, or did not send a frame within ROUND_S.
        """
        if self.world_size == 1:
            return vector
        if self.rank == 0:
            total = vector.copy()
            for rank in range(1, self.world_size):  # The sum of floats depends on the order.
                total += self._receive_vector(rank)
            for rank in range(1, self.world_size):
                self._send(rank, VECTOR, total.tobytes())
            return total
        self._send(0, VECTOR, vector.tobytes())
        return self._receive_vector(0)

    def _accept(self, address: str, port: int, deadline: float) -> None:
        with _listen(address, port, deadline) as listener:
            while len(self._peers) < self.world_size - 1:
                listener.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, self.world_size)) - set(self._peers))
                    reason = f"ranks {missing} did not connect within {ASSEMBLE_S:.0f} s"
                    self._broadcast_abort(reason)
                    raise GangError(reason) from None
                self._add_peer(peer, deadline)

    def _add_peer(self, peer: socket.socket, deadline: float) -> None:
        """Read the rank of the peer and keep the connection. Close the connection of a probe or a port scan."""
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            kind, body = _read_frame(peer)
            rank = RANK.unpack(body)[0] if kind == HELLO else -1
        except (OSError, struct.error):
            rank = -1
        if not 0 < rank < self.world_size or rank in self._peers:
            peer.close()
            return
        peer.settimeout(ROUND_S)
        self._peers[rank] = _without_delay(peer)

    def _connect(self, address: str, port: int, deadline: float) -> None:
        while True:
            try:
                peer = socket.create_connection((address, port), timeout=ROUND_S)
                break
            except OSError as error:  # Rank 0 does not listen yet, or DNS does not resolve its name yet.
                if time.monotonic() > deadline:
                    raise GangError(f"rank 0 at {address}:{port} not reached in {ASSEMBLE_S:.0f} s: {error}") from error
                time.sleep(RETRY_S)
        self._peers[0] = _without_delay(peer)
        self._send(0, HELLO, RANK.pack(self.rank))

    def _receive_vector(self, rank: int) -> np.ndarray:
        try:
            kind, body = _read_frame(self._peers[rank])
        except OSError as error:
            raise GangError(f"rank {rank} is lost: {error or type(error).__name__}") from error
        if kind == ABORT:
            raise GangError(body.decode(errors="replace"))
        return np.frombuffer(body, dtype="<f8")

    def _send(self, rank: int, kind: int, body: bytes) -> None:
        try:
            self._peers[rank].sendall(HEADER.pack(len(body), kind) + body)
        except OSError as error:
            raise GangError(f"rank {rank} is lost: {error}") from error

    def _broadcast_abort(self, reason: str) -> None:
        """Send the reason to the other ranks, so that every log names the first failed rank. Errors are ignored."""
        for rank, peer in self._peers.items():
            with suppress(GangError, OSError):
                self._send(rank, ABORT, reason.encode())
                peer.shutdown(socket.SHUT_WR)
        for peer in self._peers.values():
            with suppress(OSError):
                # A close with unread bytes resets the connection, and the reset could arrive before the reason.
                peer.settimeout(CLOSE_S)
                while peer.recv(65536):
                    pass


def _listen(address: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_server((address, port), backlog=128)
        except OSError as error:  # DNS resolves the name of this pod after a short time.
            if time.monotonic() > deadline:
                raise GangError(f"rank 0 cannot listen on {address}:{port}: {error}") from error
            time.sleep(RETRY_S)


def _without_delay(peer: socket.socket) -> socket.socket:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # A round sends one small message in each direction.
    return peer


def _read_frame(peer: socket.socket) -> tuple[int, bytes]:
    size, kind = HEADER.unpack(_read_exactly(peer, HEADER.size))
    if size > FRAME_BYTES_MAX:
        raise ConnectionError(f"a frame of {size} bytes exceeds the limit")
    return kind, _read_exactly(peer, size)


def _read_exactly(peer: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = peer.recv(size - len(chunks))
        if not chunk:
            raise ConnectionError("connection closed")
        chunks += chunk
    return bytes(chunks)
