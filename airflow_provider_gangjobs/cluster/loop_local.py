"""State shared by everything that runs on one event loop, and gone with it.

The only module-global of this package: connections, locks and tasks belong to a loop, so nothing of them
may be shared further. A process has one loop as a triggerer, and one after another as a worker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_STATE: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]] = WeakKeyDictionary()


def of_running_loop(kind: Callable[[], T]) -> T:
    """The running loop's one `kind`, made at the first call."""
    state = _STATE.setdefault(asyncio.get_running_loop(), {})
    if kind not in state:
        state[kind] = kind()
        _forget_closed()
    made: T = state[kind]
    return made


def _forget_closed() -> None:
    """What is kept for a loop may refer to it, so the weak key alone would keep a worker's past loops alive."""
    for loop in [loop for loop in _STATE if loop.is_closed()]:
        del _STATE[loop]
