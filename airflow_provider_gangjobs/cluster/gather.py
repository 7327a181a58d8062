"""Sends requests at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def gather_or_cancel(*requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all at once and return the results in order. If one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
