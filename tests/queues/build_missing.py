"""Builds the programs of the queue tests that are missing, and prints what is done. The rest is in each `build.py`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def build_missing(
    names: Sequence[str],
    versions: Mapping[str, str],
    *,
    label: str,
    is_current: Callable[[str], bool],
    build: Callable[[str], None],
    binary: Callable[[str], Path],
) -> int:
    """Build each program that is not current. Returns the exit status: 2 for a name that is not known.

    :param versions: The version that is built, by the name of the program.
    :param label: What is printed before the name.
    """
    for name in names:
        if name not in versions:
            print(f"{name} is not known (known: {', '.join(versions)})", file=sys.stderr)
            return 2
        if is_current(name):
            print(f"{label}{name}: {binary(name)} is up to date")
            continue
        print(f"{label}{name}: building {versions[name]} (some minutes when cold) ...", flush=True)
        started = time.monotonic()
        build(name)
        print(f"{label}{name}: built in {time.monotonic() - started:.0f} s: {binary(name)}")
    return 0
