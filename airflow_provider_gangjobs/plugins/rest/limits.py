"""Limits of the REST interface: the size of a request, and how many requests a user may send.

The limits are those of one process of the API server. They keep one client from slowing Airflow and the clusters down.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastapi import HTTPException

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import Request

BODY_BYTES_MAX: Final = 4 * 2**20
"""The API server of a cluster accepts 3 MiB for one object, and a gang has one object with files."""
DISCARDED_BYTES_MAX: Final = 16 * 2**20
"""How much of a larger body is read and thrown away. Most clients see an answer only after they have sent the body."""
_DIGITS_MAX: Final = len(str(BODY_BYTES_MAX + DISCARDED_BYTES_MAX))
BODY_WITHIN_S: Final = 30.0
AT_ONCE_MAX: Final = 32
AT_ONCE_OF_USER_MAX: Final = 16
REQUESTS_PER_S: Final = 10.0
BURST: Final = 100.0
"""How many requests a user may send at once who has sent none for a while."""


@dataclass
class Limits:
    """Counts the requests of users."""

    clock: Callable[[], float] = time.monotonic
    _running: Counter[str] = field(default_factory=Counter, init=False)
    _left: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """By user, how many requests were left when the last one came, and when that was."""

    @contextmanager
    def admit(self, user: str) -> Iterator[None]:
        """Count a request of the user while the block runs.

        Raises:
            HTTPException: 429 with `Retry-After`, if the user or all users together send too many.
        """
        left, at = self._left.get(user, (BURST, 0.0))
        now = self.clock()
        left = min(BURST, left + (now - at) * REQUESTS_PER_S)
        if left < 1:
            raise too_many(f"You may send {REQUESTS_PER_S:.0f} requests per second")
        if self._running[user] >= AT_ONCE_OF_USER_MAX or self._running.total() >= AT_ONCE_MAX:
            raise too_many(f"You may send {AT_ONCE_OF_USER_MAX} requests at once, and all users {AT_ONCE_MAX}")
        self._left[user] = (left - 1, now)
        self._running[user] += 1
        try:
            yield
        finally:
            self._running[user] -= 1


def too_many(limit: str) -> HTTPException:
    """Return the error for a limit that a request exceeds."""
    return HTTPException(429, f"Too many requests. {limit}", {"Retry-After": "1"})


async def read_json(request: Request) -> bytes:
    """Return the body of a request, which is not decoded. A body that is too large is not kept.

    Raises:
        HTTPException: 408, 413, or 415. Only JSON is accepted, which a form on another website cannot send.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "Send the body with the header Content-Type: application/json")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > _DIGITS_MAX or int(declared) > BODY_BYTES_MAX + DISCARDED_BYTES_MAX):
        raise _too_large()
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                size += len(part)
                if size <= BODY_BYTES_MAX:
                    body += part
                elif size > BODY_BYTES_MAX + DISCARDED_BYTES_MAX:
                    break
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {BODY_WITHIN_S:.0f} seconds") from None
    if size > BODY_BYTES_MAX:
        raise _too_large()
    return bytes(body)


def _too_large() -> HTTPException:
    remedy = "Store large files as uploads, which several requests may send"
    return HTTPException(413, f"The body has more than {BODY_BYTES_MAX:,} bytes. {remedy}")
