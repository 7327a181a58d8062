"""A work queue with an injected clock: each key is queued at most once, and never returned before its time.

The rules are those of client-go's workqueue. Adding a key that is queued keeps the earlier time. Failures of a key back
off exponentially, and a success resets its back-off. The queue has no thread and no timer: its owner asks for the keys
that are due, and for the time at which to ask again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from gangjobs_sandbox.clock import Clock

Key = TypeVar("Key", bound=Hashable)

_DOUBLINGS_MAX = 30
"""Limits the exponent of the back-off to what a timedelta can hold."""


class WorkQueue(Generic[Key]):
    """The queue of keys in order of their due times, and of their arrival for equal times.

    Args:
        base_delay_s: the back-off after the first failure of a key, in seconds.
        max_delay_s: the limit of the back-off, in seconds.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        base_delay_s: float = 1.0,
        max_delay_s: float = 60.0,
    ) -> None:
        self._clock = clock
        self._base_delay_s = base_delay_s
        self._max_delay_s = max_delay_s
        self._due: dict[Key, datetime] = {}
        self._heap: list[tuple[datetime, int, Key]] = []
        self._sequence = 0
        self._failures: dict[Key, int] = {}
        self.on_add: Callable[[], None] = lambda: None
        """Called after each addition. The owner of the queue sets this function to wake up from its sleep."""

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: Key, *, after_s: float = 0.0) -> None:
        """Queue the key, due in `after_s` seconds. An earlier due time of the same key stays."""
        due = self._clock.now() + timedelta(seconds=max(after_s, 0.0))
        queued = self._due.get(key)
        if queued is None or due < queued:
            self._due[key] = due
            self._sequence += 1
            heapq.heappush(self._heap, (due, self._sequence, key))
            self.on_add()

    def retry(self, key: Key) -> float:
        """Count one more failure of the key and queue it after its back-off. Returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(self._base_delay_s * 2.0 ** min(failures, _DOUBLINGS_MAX), self._max_delay_s)
        self.add(key, after_s=delay_s)
        return delay_s

    def forget(self, key: Key) -> None:
        """Reset the failure count of the key after a success."""
        self._failures.pop(key, None)

    def pop(self) -> Key | None:
        """Return the next key that is due, or None."""
        self._drop_superseded()
        if not self._heap or self._heap[0][0] > self._clock.now():
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due[key]
        return key

    def next_due(self) -> datetime | None:
        """Return when the next key is due, or None if nothing is queued."""
        self._drop_superseded()
        return self._heap[0][0] if self._heap else None

    def _drop_superseded(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
