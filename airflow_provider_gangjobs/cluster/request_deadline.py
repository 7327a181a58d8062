"""One deadline for all requests of an operation, however many loops retry inside each other.

A client retries a request for a while, and an operation retries a step that failed. Without a common deadline these
retry budgets multiply. Inside a `request_deadline` block neither of them starts a retry after the deadline. The
deadline applies to the current asyncio task and to the tasks that it creates in the block.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_deadline: ContextVar[float] = ContextVar("request_deadline", default=math.inf)


@contextmanager
def request_deadline(at_s: float) -> Iterator[None]:
    """Start no retry after `at_s`, a time of `Clock.monotonic`, in the block. An earlier outer deadline stays."""
    token = _deadline.set(min(at_s, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> float:
    """Return the time of `Clock.monotonic` after which no retry starts; infinity without a deadline."""
    return _deadline.get()


__all__ = ["current_deadline", "request_deadline"]
