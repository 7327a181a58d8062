"""The function of the golden file `python`. A change of its source makes another gang."""

from __future__ import annotations


def add(first: int, second: int) -> int:
    import os
    import time
    from pathlib import Path

    while not (Path("/tmp/gangjobs-golden") / os.environ["RANK"]).exists():
        time.sleep(0.1)
    return first + second
