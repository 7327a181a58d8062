"""The value of the annotation that counts how often a gang was returned to its queue.

`gang.state.requeue` has the rules.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class Requeues(Struct, frozen=True):
    """How often a gang was returned to its queue. The text of a value is the value of the annotation."""

    count: int
    start: datetime | None = None
    """While the gang is being returned: `status.startTime` of the Job in the run that did not assemble."""

    def __str__(self) -> str:
        return f"{self.count} {self.start.isoformat()}" if self.start else str(self.count)


def parse_requeues(text: str | None) -> Requeues | None:
    """Return the value of the annotation; `None` if the gang is not to be returned, or if the value is unknown."""
    count, _, start = (text or "").partition(" ")
    if not count.isdecimal():
        return None
    try:
        return Requeues(int(count), datetime.fromisoformat(start) if start else None)
    except ValueError:
        return None


__all__ = ["Requeues", "parse_requeues"]
