"""State that is shared by all code on one event loop and is dropped with the loop.

Connections, locks, and tasks belong to a loop, so they cannot be shared
between loops. A triggerer process has one loop, and a worker process has one loop after another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_STATE: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]] = WeakKeyDictionary()


def loop_local(factory: Callable[[], T]) -> T:
    """Return the running loop's only instance of `factory`. The first call on a loop creates the instance."""
    state = _STATE.setdefault(asyncio.get_running_loop(), {})
    if factory not in state:
        state[factory] = factory()
        _drop_closed_loops()
    instance: T = state[factory]
    return instance


def set_loop_local(factory: Callable[[], T], instance: T) -> None:
    """Make `instance` the running loop's instance of `factory`, for a program with settings of its own.

    Call this before the first use: code that already uses another instance keeps it.
    """
    _STATE.setdefault(asyncio.get_running_loop(), {})[factory] = instance


def _drop_closed_loops() -> None:
    """Drop the state of closed loops. The state may refer to its loop, so the weak key alone would keep both alive."""
    for loop in [loop for loop in _STATE if loop.is_closed()]:
        del _STATE[loop]
