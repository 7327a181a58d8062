"""The coroutines in which a task waits, for the message of a test that times out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def awaited_by(task: asyncio.Task[Any]) -> list[str]:
    """Return function and line of each coroutine of a suspended task, the outermost first.

    `Task.get_stack` returns the outermost one only.
    """
    lines: list[str] = []
    waits: Any = task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "ag_frame", None)
        if frame is not None:
            lines.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        waits = getattr(waits, "cr_await", None) or getattr(waits, "ag_await", None)
    return lines
