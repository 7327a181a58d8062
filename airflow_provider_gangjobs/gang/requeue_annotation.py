"""The values of the annotations about the earlier runs of a gang in its queue.

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


class AssemblyBaseline(Struct, frozen=True):
    """From which of Kueue's counts on the earlier runs of a gang count as time in which the gang assembled.

    The text of a value is the value of the annotation.
    """

    other_stops: int = 0
    """How often Kueue had stopped the gang for another reason than pods that did not become ready."""
    admitted_s: int = 0
    """For how long the gang had been admitted until then, in seconds."""

    def __str__(self) -> str:
        return f"{self.other_stops} {self.admitted_s}"


def parse_assembly_baseline(text: str | None) -> AssemblyBaseline:
    """Return the value of the annotation. Without a known value, all earlier runs count."""
    stops, _, admitted_s = (text or "").partition(" ")
    if not (stops.isdecimal() and admitted_s.isdecimal()):
        return AssemblyBaseline()
    return AssemblyBaseline(int(stops), int(admitted_s))


def parse_requeues(text: str | None) -> Requeues | None:
    """Return the value of the annotation; `None` if the gang is not to be returned, or if the value is unknown."""
    count, _, start = (text or "").partition(" ")
    if not count.isdecimal():
        return None
    try:
        return Requeues(int(count), datetime.fromisoformat(start) if start else None)
    except ValueError:
        return None


__all__ = ["AssemblyBaseline", "Requeues", "parse_assembly_baseline", "parse_requeues"]
