"""Completion indexes as intervals, in the notation of a Job's status: "0,2-5"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.meta import annotations_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ANNOTATION_INDEX = "batch.kubernetes.io/job-completion-index"

_INTERVAL = re.compile(r"^(\d+)(?:-(\d+))?$", re.ASCII)


@dataclass(frozen=True)
class Indexes:
    """A set of indexes, as ordered, disjoint, non-adjacent closed intervals."""

    intervals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str | None, completions: int) -> Indexes:
        """Parse the compact text. Indexes at or above `completions` and invalid parts are ignored."""
        found = []
        for part in (text or "").split(","):
            match = _INTERVAL.match(part)
            if match is None:
                continue
            first = int(match[1])
            last = min(int(match[2] or first), completions - 1)
            if first <= last:
                found.append((first, last))
        return cls(_normalised(found))

    @classmethod
    def of(cls, indexes: Iterable[int]) -> Indexes:
        return cls(_normalised((index, index) for index in indexes))

    def __or__(self, other: Indexes) -> Indexes:
        return Indexes(_normalised((*self.intervals, *other.intervals)))

    def __contains__(self, index: int) -> bool:
        return any(first <= index <= last for first, last in self.intervals)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.intervals:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.intervals)

    def __str__(self) -> str:
        return ",".join(_interval_text(first, last) for first, last in self.intervals)


def index_of(pod: Mapping[str, Any]) -> int | None:
    """Return the completion index in the pod's annotation, or None if it is missing or not a whole number."""
    text = annotations_of(pod).get(ANNOTATION_INDEX, "")
    return int(text) if text.isascii() and text.isdigit() else None


def valid_index(pod: Mapping[str, Any], completions: int) -> int | None:
    """Return the completion index if it is below the Job's completions."""
    index = index_of(pod)
    return index if index is not None and index < completions else None


def first_free(taken: Indexes, count: int, completions: int) -> list[int]:
    """Return the lowest `count` indexes below `completions` that are not taken."""
    free: list[int] = []
    candidate = 0
    for first, last in (*taken.intervals, (completions, completions)):
        stop = min(first, completions, candidate + count - len(free))
        free.extend(range(candidate, stop))
        candidate = max(candidate, last + 1)
    return free


def _normalised(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _interval_text(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}{',' if last == first + 1 else '-'}{last}"
