"""Excludes the objects in the store from garbage collections, for a process that runs little but a sandbox.

Objects in the store never change and contain no reference cycles, so a garbage collection of Python frees none of them.
A full collection still visits all of them and blocks the event loop for about 30 ms per 1,000 pods. `gc.freeze`
excludes objects from collections. A frozen object is freed as usual when its last reference goes away.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.store import Event

__all__ = ["gc_frozen"]

CHANGES = 1_000
"""The number of changes after which new objects are collected once, which takes a few milliseconds, and frozen."""


@contextmanager
def gc_frozen(registry: Registry, *, changes: int = CHANGES) -> Iterator[None]:
    """Freeze the objects of the process now, and again after every `changes` changes, while the block runs.

    The freeze concerns the whole process: cycles that become garbage in the meantime may be freed only at the end of
    the block.
    """
    count = 0

    def collect_and_freeze(event: Event) -> None:
        nonlocal count
        count += 1
        if count % changes == 0:
            gc.collect()
            gc.freeze()

    gc.collect()
    gc.freeze()
    stop = registry.observe(collect_and_freeze)
    try:
        yield
    finally:
        stop()
        gc.unfreeze()
