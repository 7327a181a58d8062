"""Ages as kubectl prints them (`k8s.io/apimachinery/pkg/util/duration`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.clock import parse_time

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["UNKNOWN", "between", "human", "since"]

UNKNOWN = "<unknown>"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 365 * 86_400

_STEPS = (
    (2 * _MINUTE, (1, "s"), None),
    (10 * _MINUTE, (_MINUTE, "m"), (1, "s")),
    (3 * _HOUR, (_MINUTE, "m"), None),
    (8 * _HOUR, (_HOUR, "h"), (_MINUTE, "m")),
    (2 * _DAY, (_HOUR, "h"), None),
    (8 * _DAY, (_DAY, "d"), (_HOUR, "h")),
    (2 * _YEAR, (_DAY, "d"), None),
    (8 * _YEAR, (_YEAR, "y"), (_DAY, "d")),
)
"""Below this many seconds: the larger unit, and the smaller unit, or None if the larger unit is used alone."""


def human(seconds: float) -> str:
    """Format a duration with at most two units, such as `5m30s`."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    for limit, (big, big_name), small in _STEPS:
        if whole < limit:
            rest = whole % big // small[0] if small else 0
            return f"{whole // big}{big_name}" + (f"{rest}{small[1]}" if small and rest else "")
    return f"{whole // _YEAR}y"


def since(text: str | None, now: datetime) -> str:
    """Format the time since a timestamp."""
    return human((now - parse_time(text)).total_seconds()) if text else UNKNOWN


def between(start: str, end: str) -> str:
    """Format the time between two timestamps."""
    return human((parse_time(end) - parse_time(start)).total_seconds())
