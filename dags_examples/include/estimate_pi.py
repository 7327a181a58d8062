"""The leader gives the numbers of parts to the workers. Each worker draws points and reports how many hit the circle.

A line of JSON is one message. A worker sends the hits of its last part, and receives the number of the next part, or
null when no part is left.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from typing import Any

POINTS = 20_000
"""The number of points of one part."""


def lead(parts: int) -> dict[str, Any]:
    """Hand out the parts, and return the estimate when every worker has reported its last one."""
    workers = int(os.environ["GANG_SIZE"]) - int(os.environ["GANG_ROLE_SIZE"])
    waiting, hits = list(range(parts)), 0
    with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as listener:
        lines = [listener.accept()[0].makefile("rw") for _ in range(workers)]
        while lines:
            for line in list(lines):
                hits += json.loads(line.readline())
                part = waiting.pop() if waiting else None
                print(json.dumps(part), file=line, flush=True)
                if part is None:
                    lines.remove(line)
    return {"parts": parts, "pi": 4 * hits / (parts * POINTS)}


def work() -> int:
    """Ask the leader for parts until none is left. Return how many parts this worker has done."""
    with connect().makefile("rw") as leader:
        done, hits = 0, 0
        while True:
            print(json.dumps(hits), file=leader, flush=True)
            part = json.loads(leader.readline())
            if part is None:
                return done
            hits, done = count_hits(part), done + 1


def count_hits(part: int) -> int:
    """Return how many of the points of a part are inside the circle. The same part has the same points."""
    draw = random.Random(part)
    return sum(draw.random() ** 2 + draw.random() ** 2 < 1 for _ in range(POINTS))


def connect() -> socket.socket:
    """Connect to the leader. DNS resolves its name shortly after its pod has started."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    role = f"{os.environ['GANG_ROLE']} {os.environ['GANG_ROLE_RANK']}"
    result = lead(int(sys.argv[2])) if sys.argv[1] == "lead" else work()
    print(f"{role}: {result}")
    with open(os.environ["GANG_RESULT_PATH"], "w") as file:
        json.dump(result, file)
