"""Waits for the first of several tasks, and cancels tasks that are no longer needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["cancel_and_wait", "wait_first"]


async def wait_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of the coroutines returns, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the unfinished tasks and wait until they have ended. Their exceptions are discarded."""
    for task in tasks:
        # A second cancellation would interrupt the cleanup after the first one.
        if not task.done() and not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
