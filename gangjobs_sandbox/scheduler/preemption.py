"""Chooses the victims of a preemption: as few as possible, and the least important ones. Pure.

A victim is a pod, or all pods of a group whose disruption mode is to be disrupted as a whole (KEP-5710). The resources
of pods that are already being deleted count as free, so that no other pod is evicted for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.scheduler.placement import Candidate, place_cooperatively

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from decimal import Decimal

    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.scheduler.nodes import NodeState, Obj

VICTIMS_MAX = 100
"""The number of the least important candidates for eviction that are considered. Each one costs a trial placement."""


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
