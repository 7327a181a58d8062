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
    """Where the time comes from."""

    def now(self) -> datetime:
        """The time now, in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class VirtualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward; it never goes back."""
        assert seconds >= 0, "time does not go back"
        self._now += timedelta(seconds=seconds)


def timestamp(moment: datetime) -> str:
    """The `metav1.Time` text: RFC 3339 in whole seconds."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:_SECONDS_CHARS] + "Z"


def micro_time(moment: datetime) -> str:
    """The `metav1.MicroTime` text: RFC 3339 in microseconds, as in events.k8s.io and leases."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:_MICROSECONDS_CHARS] + "Z"


def parse_time(text: str) -> datetime:
    """The moment that either text names.

    Raises:
        ValueError: the text is no RFC 3339 timestamp.
    """
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
