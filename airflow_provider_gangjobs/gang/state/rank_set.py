"""A set of ranks in which each is counted: it is in the set as long as one pod of it is. A byte for most of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

BYTES_MAX: Final = 1 << 17
"""Indexes below it, which an Indexed Job of 100,000 pods keeps to, cost a byte each; whatever else, 100 bytes."""


class RankSet:
    """Completion indexes from 0 on, each of which nearly always has one pod; and uids of pods that have no index."""

    __slots__ = ("_has_one", "_more", "_number", "_others")

    def __init__(self) -> None:
        self._has_one = bytearray()
        self._number = 0
        self._more: Counter[int] = Counter()
        """Pods of an index beside its first."""
        self._others: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return self._number + len(self._others)

    def add(self, rank: Hashable) -> None:
        """One more pod of this rank."""
        if not isinstance(rank, int) or rank >= BYTES_MAX:
            self._others[rank] += 1
            return
        if rank >= len(self._has_one):
            # Doubled, as lists grow: ranks come one by one.
            self._has_one.extend(bytes(max(rank + 1, 2 * len(self._has_one)) - len(self._has_one)))
        if self._has_one[rank]:
            self._more[rank] += 1
        else:
            self._has_one[rank] = 1
            self._number += 1

    def remove(self, rank: Hashable) -> None:
        """One pod less of this rank. It must have been added."""
        if not isinstance(rank, int) or rank >= BYTES_MAX:
            _less(self._others, rank)
        elif rank in self._more:
            _less(self._more, rank)
        else:
            self._has_one[rank] = 0
            self._number -= 1

    def is_exactly(self, indexes: int) -> bool:
        """They are the indexes from 0 to below this number, and nothing else."""
        return len(self) == self._number == indexes == self._in(range(indexes))

    def union_size(self, spans: Iterable[range]) -> int:
        """How many ranks there are with those of some disjoint ranges of indexes."""
        return len(self) + sum(len(span) - self._in(span) for span in spans)

    def _in(self, span: range) -> int:
        others = sum(isinstance(rank, int) and rank in span for rank in self._others)
        within = min(span.stop, len(self._has_one)) - min(span.start, len(self._has_one))
        return within - self._has_one.count(0, span.start, span.stop) + others  # the rarer byte is counted faster


def _less(counter: Counter[Any], key: Hashable) -> None:
    number = counter.pop(key) - 1
    if number:
        counter[key] = number
