"""The gang scheduler: decides which pods to try at which time, and acts on the result.

A unit is a single pod, or all waiting pods of a group. The scheduler tries a unit when the unit is new or when a change
may help it, but not before the back-off of the unit is over. A unit that does not fit is tried again without limit. The
scheduler ignores a group until the group exists and has minCount pods. Then it places the pods on one snapshot of the
nodes: as many as needed, or none. Placement is cooperative: if in the meantime a node has changed,
another pod has taken resources, or a placed member no longer waits, the scheduler binds nothing and tries the unit
again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.meta import is_terminal, labels_of, name_of, namespace_of, node_of, uid_of
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.resources import NODES, PODGROUPS, PODS
from gangjobs_sandbox.scheduler.cache import (
    ClusterCache,
    GroupKey,
    find_group,
    first_of,
    group_key,
    in_order,
    priority_of,
)
from gangjobs_sandbox.scheduler.placement import Candidate, Placement, place, place_cooperatively
from gangjobs_sandbox.scheduler.preemption import Evictor
from gangjobs_sandbox.scheduler.report import Gang, Messages, Reporter, priorities_differ

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.scheduler.cache import Group
    from gangjobs_sandbox.scheduler.nodes import Obj
    from gangjobs_sandbox.store import Event

_CYCLE = "cycle"
BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 10.0
_DOUBLINGS_MAX = 10

Unit = tuple[str, Hashable]
"""("pod", UID) or ("group", GroupKey)."""


@dataclass(frozen=True)
class Attempts:
    """The failed attempts of a unit, and the time of the next attempt."""

    failures: int
    ready_at: datetime


class SchedulingQueue:
    """The units that the scheduler is to try: new units, and units that a change may help.

    A unit that failed waits until its back-off is over.
    """

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

    def next_s(self) -> float | None:
        """Return the seconds until an active unit may be tried. None means never."""
        now = self._clock.now()
        times = [self._ready_at(unit, now) for unit in self._active]
        return (min(times) - now).total_seconds() if times else None

    def _ready_at(self, unit: Unit, now: datetime) -> datetime:
        """Return when the unit may be tried. The result for a unit without failures is `now`."""
        attempts = self._attempts.get(unit)
        return attempts.ready_at if attempts else now


class Scheduler:
    """The scheduler. Its only key is a cycle over all units that are due, the most important unit first."""

    name = "scheduler"

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._release = registry.release
        self._cache = ClusterCache()
        self._messages = Messages(registry.release)
        self._report = Reporter(registry, clock, self._release.pod_group_condition)
        self._evictor = Evictor(registry, clock, self._cache)
        self._scheduling_queue = SchedulingQueue(clock)
        self._has_freed_resources = False
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for node in registry.list(NODES):
            self._cache.put_node(node)
        for pod in registry.list(PODS):
            self._pod_changed(pod, None)

    def observe(self, event: Event) -> None:
        is_gone = event.type == "DELETED"
        if event.resource is PODS:
            if is_gone:
                self._pod_gone(event.obj)
            else:
                self._pod_changed(event.obj, event.old)
        elif event.resource is NODES:
            self._node_changed(event.obj, event.old, is_gone=is_gone)
        elif event.resource is PODGROUPS and not is_gone and _has_new_spec(event):
            self._resources_changed()

    def sync(self, key: Hashable) -> Cooperative[None]:
        """Try the units that are due. Raises StatusError if the registry unexpectedly refuses a write."""
        if self._has_freed_resources:
            self._has_freed_resources = False
            self._activate_all()
        ranked: list[tuple[tuple[int, str, str], Unit]] = []
        for unit in self._scheduling_queue.due():
            if self._may_be_tried(unit):
                rank = yield from self._rank(unit)
                ranked.append((rank, unit))
            else:
                self._scheduling_queue.deactivate(unit)
        for _, unit in sorted(ranked, key=itemgetter(0)):
            self._scheduling_queue.deactivate(unit)
            try:
                yield from self._try(unit)
            except Exception:
                self._scheduling_queue.activate(unit)  # the cycle is retried with this unit and the remaining ones
                raise
        self._enqueue_next_cycle()

    def _may_be_tried(self, unit: Unit) -> bool:
        """Return whether the unit's pods still wait and its group is complete. If not, the scheduler writes nothing."""
        kind, key = unit
        if kind == "group":
            return self._ready_group(key) is not None  # type: ignore[arg-type]
        pod = self._cache.waiting.get(str(key))
        if pod is None:
            self._scheduling_queue.forget(unit)
        return pod is not None

    def _try(self, unit: Unit) -> Cooperative[None]:
        if not self._may_be_tried(unit):  # the units that were tried earlier in this cycle took time
            return
        kind, key = unit
        if kind == "group":
            yield from self._try_group(unit, key)  # type: ignore[arg-type]
        else:
            yield from self._try_pod(unit, self._cache.waiting[str(key)])

    def _try_pod(self, unit: Unit, pod: Obj) -> Cooperative[None]:
        candidates = [Candidate.of(pod)]
        placement = place(candidates, self._cache.nodes.values(), needed=1)
        eviction = None
        if not placement.is_feasible:
            eviction = yield from self._evictor.preempt(candidates, needed=1)
        messages = {uid: self._messages.pod(refusal, eviction) for uid, refusal in placement.refused.items()}
        yield from self._apply_placement(unit, [pod], placement, messages)

    def _try_group(self, unit: Unit, key: GroupKey) -> Cooperative[None]:
        group = self._ready_group(key)
        if group is None:
            return
        generation = self._cache.placement_generation
        pods = yield from in_order(self._cache.waiting_of(key))
        if not pods:
            return
        if (yield from self._is_refused_for_priority(unit, pods, group)):
            return
        gang = Gang(group.min_count or 1, self._cache.bound_count(key))
        needed = gang.minimum - gang.bound
        candidates = yield from _candidates(pods)
        placement = yield from place_cooperatively(candidates, self._cache.nodes.values(), needed=needed)
        is_outdated = generation != self._cache.placement_generation
        if is_outdated or not all(uid in self._cache.waiting for uid in placement.nodes):
            self._activate(unit)
            return
        eviction = None
        if not placement.is_feasible:
            pod_group = group.pod_group if self._release.schedules_groups else None
            eviction = yield from self._evictor.preempt(candidates, needed=needed, pod_group=pod_group)
        yield from self._apply_placement(unit, pods, placement, self._messages.members(pods, gang, placement, eviction))
        if placement.is_feasible:
            self._report.record_group_placement(group.pod_group)
        else:
            self._report.record_group_refusal(group.pod_group, self._messages.group(gang, placement, eviction))

    def _is_refused_for_priority(self, unit: Unit, pods: list[Obj], group: Group) -> Cooperative[bool]:
        if not self._release.schedules_groups:
            return False
        message = priorities_differ(pods, priority_of(group.pod_group))
        if message is None:
            return False
        for pod in pods:
            self._report.record_refusal(pod, message, reason="SchedulerError")
            yield
        self._report.record_group_refusal(group.pod_group, message, reason="SchedulerError")
        self._scheduling_queue.record_failure(unit)
        return True

    def _ready_group(self, key: GroupKey) -> Group | None:
        """Return the group if it may be tried. If not, nothing is written, as in kube-scheduler."""
        group = find_group(self._registry, key)
        if group is None or (group.min_count or 0) > self._cache.member_count(key):
            return None
        return group

    def _apply_placement(
        self, unit: Unit, pods: list[Obj], placement: Placement, messages: Mapping[str, str]
    ) -> Cooperative[None]:
        """Bind the placed pods, report the other pods, and set the back-off of the unit.

        Args:
            messages: by pod UID, the message of each pod that stays without a node.
        """
        for pod in pods:
            node = placement.nodes.get(uid_of(pod)) if placement.is_feasible else None
            if node is not None:
                self._bind(pod, node)
            else:
                self._report.record_refusal(pod, messages[uid_of(pod)])
            yield
        if placement.is_feasible and not placement.refused:
            self._scheduling_queue.forget(unit)
        else:
            self._scheduling_queue.record_failure(unit)

    def _bind(self, pod: Obj, node: str) -> None:
        try:
            self._registry.bind(name_of(pod), namespace_of(pod), node)
        except StatusError as exc:
            # The pod was deleted or bound in the meantime. Its own events report that.
            if exc.code not in (404, 409):
                raise
            return
        self._report.record_binding(pod, node)

    def _rank(self, unit: Unit) -> Cooperative[tuple[int, str, str]]:
        kind, key = unit
        pods = [self._cache.waiting[str(key)]] if kind == "pod" else self._cache.waiting_of(key)  # type: ignore[arg-type]
        first = yield from first_of(pods)
        if first is None:
            return 0, "", str(key)
        return -priority_of(first), first["metadata"].get("creationTimestamp") or "", str(key)

    def _enqueue_next_cycle(self) -> None:
        after_s = self._scheduling_queue.next_s()
        if after_s is not None:
            self.queue.add(_CYCLE, after_s=after_s)

    def _pod_changed(self, pod: Obj, old: Obj | None) -> None:
        held_resources = old is not None and node_of(old) is not None and not is_terminal(old)
        self._cache.put_pod(pod)
        if held_resources and is_terminal(pod):
            self._resources_changed()
        elif old is None or old["spec"] != pod["spec"] or labels_of(old) != labels_of(pod):
            self._activate_pod_and_group(pod)

    def _pod_gone(self, pod: Obj) -> None:
        self._cache.drop_pod(pod)
        self._scheduling_queue.forget(("pod", uid_of(pod)))
        self._resources_changed()

    def _node_changed(self, node: Obj, old: Obj | None, *, is_gone: bool) -> None:
        if is_gone:
            self._cache.drop_node(node)
            return
        if old is not None and _placement_fields(old) == _placement_fields(node):
            return
        self._cache.put_node(node)
        self._resources_changed()

    def _activate_pod_and_group(self, pod: Obj) -> None:
        """Activate the pod, or its group."""
        group = group_key(pod)
        self._activate(("pod", uid_of(pod)) if group is None else ("group", group))

    def _resources_changed(self) -> None:
        """Request that the next cycle tries all waiting units, because one of them may fit now."""
        self._has_freed_resources = True
        self.queue.add(_CYCLE)

    def _activate_all(self) -> None:
        for pod in self._cache.waiting.values():
            self._activate_pod_and_group(pod)

    def _activate(self, unit: Unit) -> None:
        self.queue.add(_CYCLE, after_s=self._scheduling_queue.activate(unit))


def _placement_fields(node: Obj) -> tuple[object, ...]:
    """Return the part of a node that matters for placement. Heartbeats do not change it."""
    status = node.get("status") or {}
    return node.get("spec"), labels_of(node), status.get("allocatable"), status.get("capacity")


def _has_new_spec(event: Event) -> bool:
    return event.old is None or event.old.get("spec") != event.obj.get("spec")


def _candidates(pods: Iterable[Obj]) -> Cooperative[list[Candidate]]:
    candidates: list[Candidate] = []
    for pod in pods:
        candidates.append(Candidate.of(pod))
        yield
    return candidates
