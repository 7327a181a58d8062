"""Run a coroutine from code that is not asynchronous."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run(coroutine: Coroutine[object, object, T]) -> T:
    """The coroutine's result, from a loop of its own that ends with it.

    In a thread that already runs a loop (a notebook, or a signal handler that interrupted one), the new
    loop gets a thread of its own, and the caller's loop stands still meanwhile.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="gangjobs") as pool:
        return pool.submit(asyncio.run, coroutine).result()
