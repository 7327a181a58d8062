"""Completion indexes in the compact format of the Job controller, for example `0-3,5,7-9`."""

from __future__ import annotations


def parse_spans(text: str) -> tuple[range, ...]:
    """Return the parts of a compact list, each a range of indexes. An empty text has no parts.

    Raises:
        ValueError: The text is not a compact list.
    """
    return tuple(_parse_span(part) for part in text.split(",") if part)


def parse_indexes(text: str) -> frozenset[int]:
    """Return the indexes in a compact list. An empty text is the empty set.

    Raises:
        ValueError: The text is not a compact list.
    """
    return frozenset[int]().union(*parse_spans(text))


def _parse_span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)
