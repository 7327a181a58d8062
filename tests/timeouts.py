"""Timeouts of the tests. They are long, because a test waits to the end of a timeout only when something is broken."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TIMEOUT_S: Final = 120.0
"""The timeout of a step that takes less than a second on an idle machine."""
AIRFLOW_TIMEOUT_S: Final = 1500.0
"""The timeout of a step that takes a real Airflow some seconds, or half a minute if its processes start first."""


async def until(is_true: Callable[[], object], within_s: float = TIMEOUT_S, *, what: str = "the condition") -> None:
    """Wait until a condition holds on which no event tells."""
    try:
        async with asyncio.timeout(within_s):
            while not is_true():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what} did not hold within {within_s:.0f} s") from None


def poll(look: Callable[[], T], what: str = "the condition", within_s: float = TIMEOUT_S) -> T:
    """Call `look` until it returns a true value, and return that value."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s:.0f} s; last seen: {found!r}"
        time.sleep(0.02)
    return found
