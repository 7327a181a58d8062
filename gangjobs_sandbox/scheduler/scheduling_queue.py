"""What waits: the units that the scheduler is to try, and the pods that have a node and wait for others.

The queue holds new units, and units that a change may help. A unit that failed waits until its back-off is over.

In the Permit phase of 1.35, the pods of a gang are placed one by one and wait until minCount of them have a node. A
waiting pod keeps its resources. A gang that cannot fit therefore blocks other pods, for five minutes at a time. 1.36
replaced this phase.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.meta import is_deleting, node_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.scheduler.cache import GroupKey
    from gangjobs_sandbox.scheduler.nodes import Obj


BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 10.0
_DOUBLINGS_MAX = 10

Unit = tuple[str, Hashable]
"""("pod", UID) or ("group", GroupKey)."""


TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Attempts:
    """The failed attempts of a unit, and the time of the next attempt."""

    failures: int
    ready_at: datetime


class SchedulingQueue:
    """The active units, and the back-off of the units that failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: dict[Unit, None] = {}
        self._attempts: dict[Unit, Attempts] = {}

    def activate(self, unit: Unit) -> float:
        """Mark the unit as active. Returns the seconds until the scheduler may try the unit."""
        self._active[unit] = None
        now = self._clock.now()
        return (self._ready_at(unit, now) - now).total_seconds()

    def due(self) -> list[Unit]:
        """Return the active units whose back-off has expired."""
        now = self._clock.now()
        return [unit for unit in self._active if self._ready_at(unit, now) <= now]

    def deactivate(self, unit: Unit) -> None:
        """Mark the unit as inactive before an attempt. Only later events make it active again."""
        self._active.pop(unit, None)

    def record_failure(self, unit: Unit) -> None:
        """Record a failed attempt. The back-off is 1 s, doubled by each failure, up to 10 s."""
        failures = self._attempts[unit].failures + 1 if unit in self._attempts else 1
        backoff_s = min(BACKOFF_BASE_S * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), BACKOFF_MAX_S)
        self._attempts[unit] = Attempts(failures, self._clock.now() + timedelta(seconds=backoff_s))

    def forget(self, unit: Unit) -> None:
        """Reset the back-off of a unit that succeeded or is gone."""
        self._attempts.pop(unit, None)

    def next_s(self, others: Iterable[datetime]) -> float | None:
        """Return the seconds until an active unit may be tried or one of `others` is reached. None means never."""
        now = self._clock.now()
        times = [*(self._ready_at(unit, now) for unit in self._active), *others]
        return (min(times) - now).total_seconds() if times else None

    def _ready_at(self, unit: Unit, now: datetime) -> datetime:
        """Return when the unit may be tried. The result for a unit without failures is `now`."""
        attempts = self._attempts.get(unit)
        return attempts.ready_at if attempts else now


@dataclass(frozen=True)
class Permit:
    """A pod that waits for its gang and holds reserved resources."""

    pod: Obj
    node: str
    deadline: datetime

    @property
    def timeout_message(self) -> str:
        minutes = int(TIMEOUT_S // 60)
        return f'rejected due to timeout after waiting {minutes}m0s at plugin "GangScheduling"'


class Permits:
    """All waiting pods, by group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_group: dict[GroupKey, dict[str, Permit]] = {}
        self._group_of: dict[str, GroupKey] = {}

    def wait(self, group: GroupKey, pod: Obj, node: str) -> None:
        deadline = self._clock.now() + timedelta(seconds=TIMEOUT_S)
        self._by_group.setdefault(group, {})[uid_of(pod)] = Permit(pod, node, deadline)
        self._group_of[uid_of(pod)] = group

    def of(self, group: GroupKey) -> list[Permit]:
        return list(self._by_group.get(group, {}).values())

    def allow(self, group: GroupKey) -> list[Permit]:
        """End the wait of the group. Its pods may be bound."""
        permits = list(self._by_group.pop(group, {}).values())
        for permit in permits:
            del self._group_of[uid_of(permit.pod)]
        return permits

    def expire(self) -> list[Permit]:
        """End the wait of each group in which a pod has timed out. One rejected pod rejects the whole group."""
        now = self._clock.now()
        late = [
            group
            for group, permits in self._by_group.items()
            if any(permit.deadline <= now for permit in permits.values())
        ]
        return [permit for group in late for permit in self.allow(group)]

    def drop_if_over(self, pod: Obj) -> bool:
        """Drop the permit of a pod that is being deleted, or that another scheduler has bound.

        Returns whether the pod was assumed to be on a node.
        """
        if uid_of(pod) not in self._group_of or not (is_deleting(pod) or node_of(pod)):
            return False
        self.drop(pod)
        return not node_of(pod)

    def drop(self, pod: Obj) -> None:
        group = self._group_of.pop(uid_of(pod), None)
        if group is not None:
            permits = self._by_group[group]
            del permits[uid_of(pod)]
            if not permits:
                del self._by_group[group]

    def deadlines(self) -> list[datetime]:
        return [permit.deadline for permits in self._by_group.values() for permit in permits.values()]
