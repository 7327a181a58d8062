"""The units that the scheduler is to try.

The queue holds new units, and units that a change may help. A unit that failed waits until its back-off is over.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangjobs_sandbox.clock import Clock


BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 10.0
_DOUBLINGS_MAX = 10

Unit = tuple[str, Hashable]
"""("pod", UID) or ("group", GroupKey)."""


@dataclass(frozen=True)
class Attempts:
    """The failed attempts of a unit, and the time of the next attempt."""

    failures: int
    ready_at: datetime


class SchedulingQueue:
    """The active units, and the back-off of the units that failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: dict[Unit, None] = {}
        self._attempts: dict[Unit, Attempts] = {}

    def activate(self, unit: Unit) -> float:
        """Mark the unit as active. Returns the seconds until the scheduler may try the unit."""
        self._active[unit] = None
        now = self._clock.now()
        return (self._ready_at(unit, now) - now).total_seconds()

    def due(self) -> list[Unit]:
        """Return the active units whose back-off has expired."""
        now = self._clock.now()
        return [unit for unit in self._active if self._ready_at(unit, now) <= now]

    def deactivate(self, unit: Unit) -> None:
        """Mark the unit as inactive before an attempt. Only later events make it active again."""
        self._active.pop(unit, None)

    def record_failure(self, unit: Unit) -> None:
        """Record a failed attempt. The back-off is 1 s, doubled by each failure, up to 10 s."""
        failures = self._attempts[unit].failures + 1 if unit in self._attempts else 1
        backoff_s = min(BACKOFF_BASE_S * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), BACKOFF_MAX_S)
        self._attempts[unit] = Attempts(failures, self._clock.now() + timedelta(seconds=backoff_s))

    def forget(self, unit: Unit) -> None:
        """Reset the back-off of a unit that succeeded or is gone."""
        self._attempts.pop(unit, None)

    def next_s(self) -> float | None:
        """Return the seconds until an active unit may be tried. None means never."""
        now = self._clock.now()
        times = [self._ready_at(unit, now) for unit in self._active]
        return (min(times) - now).total_seconds() if times else None

    def _ready_at(self, unit: Unit, now: datetime) -> datetime:
        """Return when the unit may be tried. The result for a unit without failures is `now`."""
        attempts = self._attempts.get(unit)
        return attempts.ready_at if attempts else now
