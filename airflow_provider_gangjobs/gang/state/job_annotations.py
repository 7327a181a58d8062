"""Marks on a Job of a gang, which are values of its annotations: which of its runs count as time of assembly."""

from __future__ import annotations

from msgspec import Struct

from airflow_provider_gangjobs.gang.state.pods import parse_number


class AssemblyBaseline(Struct, frozen=True):
    """From which of Kueue's counts on earlier runs count as time of assembly. Its text is the value of the
    annotation."""

    other_stops: int = 0
    """How often Kueue had stopped the gang for another reason than pods that did not become ready."""
    admitted_s: int = 0
    """For how long the gang had been admitted until then, in seconds."""

    def __str__(self) -> str:
        return f"{self.other_stops} {self.admitted_s}"


def parse_assembly_baseline(text: str | None) -> AssemblyBaseline:
    """Return the value of the annotation. Without a known value, all earlier runs count."""
    stops, _, admitted_s = (text or "").partition(" ")
    other_stops, before_s = parse_number(stops), parse_number(admitted_s)
    if other_stops is None or before_s is None:
        return AssemblyBaseline()
    return AssemblyBaseline(other_stops, before_s)
