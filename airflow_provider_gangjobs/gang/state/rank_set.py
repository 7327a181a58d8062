"""Rank set: a set of ranks that counts the pods of each rank, with one byte for most ranks.

A rank is in the set as long as one of its pods is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

BYTES_MAX: Final = 1 << 17
"""An index below this limit costs one byte, and any other rank costs 100 bytes. The indexes of an Indexed Job of
100,000 pods are below the limit."""


class RankSet:
    """Completion indexes from 0 on, and UIDs of pods that have no index. Nearly every index has one pod."""

    __slots__ = ("_has_one", "_more", "_number", "_others")

    def __init__(self) -> None:
        self._has_one = bytearray()
        self._number = 0
        self._more: Counter[int] = Counter()
        """Number of pods of each index, without its first pod."""
        self._others: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return self._number + len(self._others)

    def add(self, rank: Hashable) -> None:
        """Add one pod of this rank."""
        if not isinstance(rank, int) or rank >= BYTES_MAX:
            self._others[rank] += 1
            return
        if rank >= len(self._has_one):
            # The size doubles, as the size of a list does, because ranks are added one by one.
            self._has_one.extend(bytes(max(rank + 1, 2 * len(self._has_one)) - len(self._has_one)))
        if self._has_one[rank]:
            self._more[rank] += 1
        else:
            self._has_one[rank] = 1
            self._number += 1

    def remove(self, rank: Hashable) -> None:
        """Remove one pod of this rank. The pod must have been added."""
        if not isinstance(rank, int) or rank >= BYTES_MAX:
            _decrement(self._others, rank)
        elif rank in self._more:
            _decrement(self._more, rank)
        else:
            self._has_one[rank] = 0
            self._number -= 1

    def is_exactly(self, indexes: int) -> bool:
        """Return whether the set consists of the indexes from 0 to `indexes` - 1, and has no other ranks."""
        return len(self) == self._number == indexes == self._count_in(range(indexes))

    def union_size(self, spans: Iterable[range]) -> int:
        """Return the number of ranks in the union of this set and some disjoint ranges of indexes."""
        return len(self) + sum(len(span) - self._count_in(span) for span in spans)

    def _count_in(self, span: range) -> int:
        others = sum(isinstance(rank, int) and rank in span for rank in self._others)
        within = min(span.stop, len(self._has_one)) - min(span.start, len(self._has_one))
        return within - self._has_one.count(0, span.start, span.stop) + others  # counting the rarer byte is faster


def _decrement(counter: Counter[Any], key: Hashable) -> None:
    number = counter.pop(key) - 1
    if number:
        counter[key] = number
