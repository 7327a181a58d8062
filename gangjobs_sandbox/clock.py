"""The time in the embedded cluster: the time of the system, or a virtual time that tests advance.

Every part of the sandbox that needs the time reads it from a `Clock`. This module also formats the timestamps in
objects, in the two precisions that Kubernetes uses.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "SystemClock", "VirtualClock", "micro_time", "parse_time", "timestamp"]


_SECONDS_CHARS, _MICROSECONDS_CHARS = len("2026-01-01T00:00:00"), len("2026-01-01T00:00:00.000000")


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        ...


class SystemClock:
    """The clock of the system."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class VirtualClock:
    """A clock whose time changes only by `advance`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward. The time never goes back."""
        assert seconds >= 0, "time does not go back"
        self._now += timedelta(seconds=seconds)


def timestamp(moment: datetime) -> str:
    """Return the text of a `metav1.Time`: RFC 3339 in whole seconds."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:_SECONDS_CHARS] + "Z"


def micro_time(moment: datetime) -> str:
    """Return the text of a `metav1.MicroTime`: RFC 3339 in microseconds, as in Leases."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:_MICROSECONDS_CHARS] + "Z"


def parse_time(text: str) -> datetime:
    """Parse a `metav1.Time` or `metav1.MicroTime`.

    Raises:
        ValueError: the text is not an RFC 3339 timestamp.
    """
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
