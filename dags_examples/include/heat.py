"""Simulate heat in a rod. Each rank of a gang computes one piece and exchanges edge values with its neighbours.

The rod has length 1. The initial temperature is one half wave, sin(pi x), and both ends stay at 0. The exact solution
is therefore known: the wave keeps its shape and decays by exp(-pi^2 * diffusivity * t). The program uses only Python's
standard library.

    RANK=0 WORLD_SIZE=1 python heat.py --diffusivity 1.0

The program writes a JSON result to the file that $GANG_RESULT_PATH names: the highest temperature and the largest error
of this rank's piece.
"""

import argparse
import json
import math
import os
import socket
import struct
import sys
import time
from pathlib import Path

CONNECT_S = 60.0  # The scheduler places the ranks together, so they start within seconds of each other.
STEP_S = 60.0  # A step takes milliseconds. A longer step means that the host of a neighbour is lost.
RETRY_S = 0.1
EDGE = struct.Struct("<d")


class NeighbourLostError(RuntimeError):
    """A neighbour is missing, so this rank cannot make another step."""


class Neighbours:
    """The connections to the rank below and to the rank above. The first and the last rank have one neighbour."""

    def __init__(self, rank: int, world_size: int, master: str, port: int) -> None:
        self.rank = rank
        self.below = self.above = None
        listener = _listen(address_of(rank, master), port) if rank < world_size - 1 else None
        if rank > 0:
            self.below = _connect(address_of(rank - 1, master), port)
        if listener is not None:
            listener.settimeout(CONNECT_S)
            try:
                self.above = _configure(listener.accept()[0])
            except TimeoutError as error:
                raise NeighbourLostError(f"rank {rank + 1} did not connect within {CONNECT_S:.0f} s") from error
            listener.close()

    def exchange(self, first: float, last: float) -> tuple[float, float]:
        """Send this piece's edge values and return the neighbours' edge values; 0 beyond the ends of the rod."""
        try:
            for neighbour, edge in ((self.below, first), (self.above, last)):
                if neighbour is not None:
                    neighbour.sendall(EDGE.pack(edge))
            return _receive_edge(self.below), _receive_edge(self.above)
        except OSError as error:
            raise NeighbourLostError(f"rank {self.rank} lost a neighbour: {error}") from error


def address_of(rank: int, master: str) -> str:
    """Return the host name of a rank. The name of rank 0 is `<gang>-0.<service>`."""
    host, dot, domain = master.partition(".")
    return f"{host.removesuffix('-0')}-{rank}{dot}{domain}"


def simulate(neighbours: Neighbours, rank: int, world_size: int, options: argparse.Namespace) -> dict[str, float]:
    """Simulate this rank's piece and compare the result with the exact solution."""
    width = 1.0 / (options.points * world_size + 1)
    places = [width * (1 + rank * options.points + point) for point in range(options.points)]
    heat = [math.sin(math.pi * place) for place in places]
    ratio = 0.4  # diffusivity * step / width^2. The scheme is stable up to 0.5.
    step_s = ratio * width * width / options.diffusivity
    steps = math.ceil(options.until / step_s)
    for step in range(1, steps + 1):
        below, above = neighbours.exchange(heat[0], heat[-1])
        padded = [below, *heat, above]
        heat = [
            here + ratio * (left - 2 * here + right)
            for left, here, right in zip(padded, padded[1:], padded[2:], strict=False)
        ]
        if rank == 0 and step % max(1, steps // 20) == 0:
            print(f"t = {step * step_s:.4f}  step {step}/{steps}  highest temperature {max(heat):.4f}", flush=True)
    decay = math.exp(-(math.pi**2) * options.diffusivity * steps * step_s)
    error = max(abs(value - decay * math.sin(math.pi * place)) for value, place in zip(heat, places, strict=True))
    return {"rank": rank, "steps": steps, "warmest": max(heat), "error": error}


def _listen(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_server((address, port))
        except OSError:  # DNS resolves the name of this pod after a short time.
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return _configure(socket.create_connection((address, port), timeout=STEP_S))
        except OSError as error:
            if time.monotonic() > deadline:
                raise NeighbourLostError(f"{address} not reached within {CONNECT_S:.0f} s: {error}") from error
            time.sleep(RETRY_S)


def _configure(peer: socket.socket) -> socket.socket:
    peer.settimeout(STEP_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _receive_edge(peer: socket.socket | None) -> float:
    if peer is None:
        return 0.0
    received = b""
    while len(received) < EDGE.size:
        chunk = peer.recv(EDGE.size - len(received))
        if not chunk:
            raise ConnectionError("the neighbour closed the connection")
        received += chunk
    return float(EDGE.unpack(received)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate heat in a rod on the ranks of a gang.")
    parser.add_argument("--diffusivity", type=float, default=1.0)
    parser.add_argument("--until", type=float, default=0.1, help="simulated seconds")
    parser.add_argument("--points", type=int, default=12, help="points of the rod on each rank")
    options = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    master, port = os.environ.get("MASTER_ADDR", "localhost-0"), int(os.environ.get("MASTER_PORT", "29500"))
    try:
        result = simulate(Neighbours(rank, world_size, master, port), rank, world_size, options)
    except NeighbourLostError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    Path(os.environ.get("GANG_RESULT_PATH", os.devnull)).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
