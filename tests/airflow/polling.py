"""Poll a condition until it holds. The tests of real Airflow wait in no other way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.2

T = TypeVar("T")


def wait_for(
    what: str, look: Callable[[], T | None], timeout_s: float = AIRFLOW_TIMEOUT_S, *, poll_s: float = POLL_S
) -> T:
    """Call `look` until it returns a true value, and return that value. Errors of connections are ignored."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = look()
        except OSError as error:
            last = error
        else:
            if last:
                return last  # type: ignore[return-value]
        time.sleep(poll_s)
    raise TimeoutError(f"{what}: not after {timeout_s:g} s; last seen: {last!r}")
