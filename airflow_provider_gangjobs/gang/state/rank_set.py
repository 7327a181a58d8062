"""Rank set: a set of ranks that counts the pods of each rank. A rank is in the set as long as one of its pods is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class RankSet:
    """Completion indexes from 0 on, and UIDs of pods that have no index."""

    __slots__ = ("_pods",)

    def __init__(self) -> None:
        self._pods: Counter[Hashable] = Counter()
        """The number of pods of each rank, at least 1."""

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, rank: Hashable) -> None:
        """Add one pod of this rank."""
        self._pods[rank] += 1

    def remove(self, rank: Hashable) -> None:
        """Remove one pod of this rank. The pod must have been added."""
        number = self._pods.pop(rank) - 1
        if number:
            self._pods[rank] = number

    def is_exactly(self, indexes: int) -> bool:
        """Return whether the set consists of the indexes from 0 to `indexes` - 1, and has no other ranks."""
        return len(self) == indexes and all(index in self._pods for index in range(indexes))

    def union_size(self, spans: Iterable[range]) -> int:
        """Return the number of ranks in the union of this set and some disjoint ranges of indexes."""
        return len(self) + sum(index not in self._pods for span in spans for index in span)
