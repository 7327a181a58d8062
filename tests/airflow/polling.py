"""Poll a condition until it holds. The tests of real Airflow wait in no other way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.2
POLL_S_MAX = 1.0
LATE = 0.1
"""By which part of its time a long wait may end late. Airflow's API server needs 10 to 20 ms of CPU time for an answer,
so a test that polls it often keeps it busy."""

T = TypeVar("T")


def wait_for(
    what: str, look: Callable[[], T | None], timeout_s: float = AIRFLOW_TIMEOUT_S, *, poll_s: float = POLL_S
) -> T:
    """Call `look` until it returns a true value, and return that value. Errors of connections are ignored.

    The pause between two calls is `poll_s` at first, and grows with the time that has passed.
    """
    begun = time.monotonic()
    deadline = begun + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = look()
        except OSError as error:
            last = error
        else:
            if last:
                return last  # type: ignore[return-value]
        time.sleep(max(poll_s, min(LATE * (time.monotonic() - begun), POLL_S_MAX)))
    raise TimeoutError(f"{what}: not after {timeout_s:g} s; last seen: {last!r}")
