"""State that is shared by all code on one event loop and is dropped with the loop.

Connections, locks, and tasks belong to a loop, so they cannot be shared
between loops. A triggerer process has one loop, and a worker process has one loop after another.

Imports modules without blocking an event loop, such as the one on which all triggers of a triggerer run.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CLIENT", "import_in_thread"]


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


CLIENT: Final = (
    "airflow_provider_gangjobs.cluster.config",
    "airflow_provider_gangjobs.cluster.http.aiohttp_transport",
)
"""What a client imports to read the configuration of a cluster and to send its first requests. The import of aiohttp
reads the certificates of the system."""
_imported: set[str] = set()
"""Modules whose import is complete. `sys.modules` contains a module from the beginning of its import."""


async def import_in_thread(*names: str) -> None:
    """Import modules in a thread. Afterwards, an `import` statement of these modules does not block.

    The first gang of a process needs 0.3 s of CPU or more for its imports. The import system makes threads that import
    the same module wait until the import is complete.
    """
    missing = [name for name in names if name not in _imported]
    if missing:
        await asyncio.to_thread(_import_all, missing)
        _imported.update(missing)


def _import_all(names: list[str]) -> None:
    for name in names:
        import_module(name)
