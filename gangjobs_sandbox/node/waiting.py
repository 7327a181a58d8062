"""Waits for the first of several tasks, and cancels tasks that are no longer needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["end_tasks", "first_of"]


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of them does; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait until it has cleaned up; what it raised is dropped."""
    for task in tasks:
        # A second cancellation would interrupt the cleaning up of the first.
        if not task.done() and not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
