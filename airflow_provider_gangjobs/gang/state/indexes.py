"""Sets of completion indexes as the Job controller writes them: `0-3,5,7-9`."""

from __future__ import annotations


def parse_spans(text: str) -> tuple[range, ...]:
    """The parts of a compact list, each a range of indexes; the empty text has none.

    Raises:
        ValueError: the text is no such list.
    """
    return tuple(_span(part) for part in text.split(",") if part)


def parse_indexes(text: str) -> frozenset[int]:
    """The indexes in a compact list; the empty text is the empty set.

    Raises:
        ValueError: the text is no such list.
    """
    return frozenset[int]().union(*parse_spans(text))


def _span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)
