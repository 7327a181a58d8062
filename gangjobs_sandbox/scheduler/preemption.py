"""Preemption: chooses as few victims as possible, and the least important ones, and evicts them.

A victim is a pod, or all pods of a group whose disruption mode is to be disrupted as a whole (KEP-5710). The resources
of pods that are already being deleted count as free, so that no other pod is evicted for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.controllers.meta import is_deleting, name_of, namespace_of, node_of, uid_of
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import PODS
from gangjobs_sandbox.scheduler.cache import SCHEDULER_NAME, ClusterCache, find_group, group_key, priority_of
from gangjobs_sandbox.scheduler.nodes import Obj, request_of
from gangjobs_sandbox.scheduler.placement import Candidate, place_cooperatively
from gangjobs_sandbox.scheduler.report import Eviction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from decimal import Decimal

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.scheduler.nodes import NodeState, Obj
    from gangjobs_sandbox.scheduler.placement import Candidate


VICTIMS_MAX = 100
"""The number of the least important candidates for eviction that are considered. Each one costs a trial placement."""


_WHOLE_GROUP_MODES: tuple[object, ...] = ("PodGroup", {"all": {}})
"""The disruption modes, of 1.36 and of 1.37, of a group that is evicted as a whole."""


@dataclass(frozen=True)
class Occupant:
    """A pod that is placed on a node."""

    pod: Obj
    node: str
    request: dict[str, Decimal]
    priority: int
    unit: str
    """Occupants of the same unit are evicted together."""
    is_leaving: bool


@dataclass(frozen=True)
class Victim:
    """Occupants that are evicted together."""

    occupants: tuple[Occupant, ...]

    @property
    def rank(self) -> tuple[int, str]:
        """Lower ranks are evicted first. Units of equal priority are ordered by name, the last name first."""
        return max(occupant.priority for occupant in self.occupants), self.occupants[0].unit


def select_victims(
    candidates: Sequence[Candidate],
    nodes: Sequence[NodeState],
    occupants: Iterable[Occupant],
    *,
    needed: int,
    priority: int,
) -> Cooperative[list[Victim]]:
    """Return the victims to evict now. Returns none if evictions do not help or terminating pods free enough."""
    all_occupants = list(occupants)
    leaving = [occupant for occupant in all_occupants if occupant.is_leaving]
    open_nodes = _without_occupants(nodes, leaving)
    victims = [victim for victim in _units(all_occupants) if victim.rank[0] < priority]
    victims = sorted(victims, key=lambda victim: victim.rank)[:VICTIMS_MAX]

    def is_enough(evicted: list[Victim]) -> Cooperative[bool]:
        freed = _without_occupants(open_nodes, [occupant for victim in evicted for occupant in victim.occupants])
        placement = yield from place_cooperatively(candidates, freed, needed=needed)
        return placement.is_feasible

    if not victims or (yield from is_enough([])) or not (yield from is_enough(victims)):
        return []
    for victim in reversed(victims):
        spared = [other for other in victims if other is not victim]
        if (yield from is_enough(spared)):
            victims = spared
    return victims


def _units(occupants: Iterable[Occupant]) -> list[Victim]:
    by_unit: dict[str, list[Occupant]] = {}
    for occupant in occupants:
        if not occupant.is_leaving:
            by_unit.setdefault(occupant.unit, []).append(occupant)
    return [Victim(tuple(members)) for members in by_unit.values()]


def _without_occupants(nodes: Iterable[NodeState], evicted: Iterable[Occupant]) -> list[NodeState]:
    copies = {node.name: node.copy() for node in nodes}
    for occupant in evicted:
        if occupant.node in copies:
            copies[occupant.node].release(occupant.request)
    return list(copies.values())


class Evictor:
    """Evicts pods for one scheduler."""

    def __init__(self, registry: Registry, clock: Clock, cache: ClusterCache) -> None:
        self._registry = registry
        self._clock = clock
        self._cache = cache
        self._preemptor_by_victim: dict[str, str] = {}
        """By UID of an evicted pod, the UID of the first pod of the unit for which the pod was evicted."""

    def preempt(
        self, candidates: Sequence[Candidate], *, needed: int, pod_group: Obj | None = None
    ) -> Cooperative[Eviction | None]:
        """Evict less important pods if the candidates fit after the evictions. Raises StatusError.

        The resources are not reserved: the scheduler tries the candidates again when the resources are free.

        Args:
            pod_group: the group that is scheduled as a whole.
        """
        pods = [candidate.pod for candidate in candidates]
        priority = min(priority_of(pod) for pod in pods)
        if any(pod["spec"].get("preemptionPolicy") == "Never" for pod in pods):
            return None
        if not any(priority_of(pod) < priority for pod in self._cache.pods.values() if node_of(pod)):
            return None
        nodes = list(self._cache.nodes.values())
        occupants = yield from self._occupants(preemptors={uid_of(pod) for pod in pods})
        victims = yield from select_victims(candidates, nodes, occupants, needed=needed, priority=priority)
        evicted = [occupant for victim in victims for occupant in victim.occupants]
        for occupant in evicted:
            self._evict(occupant, by=pods[0], pod_group=pod_group)
            yield
        return Eviction(evicted[0].node, len(evicted)) if evicted else None

    def _occupants(self, *, preemptors: set[str]) -> Cooperative[list[Occupant]]:
        """Return the placed pods, without the pods that were evicted for another unit that still waits.

        The resources of the omitted pods count as used.
        """
        self._preemptor_by_victim = {
            victim: preemptor for victim, preemptor in self._preemptor_by_victim.items() if victim in self._cache.pods
        }
        occupants: list[Occupant] = []
        for pod in list(self._cache.pods.values()):
            yield
            node, preemptor = node_of(pod), self._preemptor_by_victim.get(uid_of(pod))
            if node is not None and (preemptor in preemptors or preemptor not in self._cache.waiting):
                unit = self._unit_of(pod)
                occupants.append(Occupant(pod, node, request_of(pod), priority_of(pod), unit, is_deleting(pod)))
        return occupants

    def _unit_of(self, pod: Obj) -> str:
        key = group_key(pod)
        group = find_group(self._registry, key) if key is not None else None
        if group is not None and group.pod_group["spec"].get("disruptionMode") in _WHOLE_GROUP_MODES:
            return f"group {uid_of(group.pod_group)}"
        return f"pod {uid_of(pod)}"

    def _evict(self, occupant: Occupant, *, by: Obj, pod_group: Obj | None) -> None:
        pod, kind = occupant.pod, "pod" if pod_group is None else "podgroup"
        text = f"{SCHEDULER_NAME}: preempting to accommodate a higher priority {kind}"
        target = meta.condition("DisruptionTarget", "True", "PreemptionByScheduler", text, self._clock.now())
        patch = {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": [target]}}
        try:
            self._registry.patch(
                PODS, name_of(pod), namespace_of(pod), patch, PatchKind.STRATEGIC, subresource="status"
            )
            self._registry.delete(PODS, name_of(pod), namespace_of(pod), uid=uid_of(pod))
        except StatusError as exc:
            if exc.code != 404:
                raise
            return
        self._preemptor_by_victim[uid_of(pod)] = uid_of(by)
        place = occupant.node if pod_group is None else "cluster"
        message = f"Preempted by {kind} {uid_of(pod_group or by)} on node {place}"
        self._registry.record_event(pod, "Normal", "Preempted", message, SCHEDULER_NAME)
