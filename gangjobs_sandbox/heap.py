"""Keeps Python's garbage collector from walking the store, for a process that is a sandbox and little else.

What the store holds never changes and has no cycles, so a collection can find nothing there; but each full one walks
all of it, and holds the loop meanwhile: some 30 ms for each 1,000 pods. So it is moved, now and then, to where
collections do not look. It is freed as before, when nobody refers to it any more.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.store import Event

__all__ = ["left_out_of_collections"]

CHANGES = 1_000
"""After so many, what has come is collected once, in a few milliseconds, and then left out."""


@contextmanager
def left_out_of_collections(registry: Registry) -> Iterator[None]:
    """While the block runs, in the whole process: other cycles that die meanwhile may be freed at its end only."""
    changes = 0

    def count(event: Event) -> None:
        nonlocal changes
        changes += 1
        if changes % CHANGES == 0:
            gc.collect()
            gc.freeze()

    gc.collect()
    gc.freeze()
    stop = registry.observe(count)
    try:
        yield
    finally:
        stop()
        gc.unfreeze()
