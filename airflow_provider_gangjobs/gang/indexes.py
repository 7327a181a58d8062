"""Sets of completion indexes as the Job controller writes them: `0-3,5,7-9`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def parse_indexes(text: str) -> frozenset[int]:
    """The indexes in a compact list; the empty text is the empty set.

    Raises:
        ValueError: the text is no such list.
    """
    return frozenset(index for part in text.split(",") if part for index in _span(part))


def _span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def format_indexes(indexes: Iterable[int]) -> str:
    """The compact list of a set of indexes, in order."""
    parts: list[list[int]] = []
    for index in sorted(set(indexes)):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
