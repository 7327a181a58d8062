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
"""Candidates for eviction that are weighed, the least important ones: each costs one trial placement."""


@dataclass(frozen=True)
class Occupant:
    """A pod that has a place."""

    pod: Obj
    node: str
    request: dict[str, Decimal]
    priority: int
    unit: str
    """Occupants of one unit go together."""
    is_leaving: bool


@dataclass(frozen=True)
class Victim:
    """Occupants that go together."""

    occupants: tuple[Occupant, ...]

    @property
    def rank(self) -> tuple[int, str]:
        """The lower, the sooner it goes; of equal priority the unit that is called later."""
        return max(occupant.priority for occupant in self.occupants), self.occupants[0].unit


def choose(
    candidates: Sequence[Candidate],
    nodes: Sequence[NodeState],
    occupants: Iterable[Occupant],
    *,
    needed: int,
    priority: int,
) -> Cooperative[list[Victim]]:
    """The victims to evict now; none if that would not help, or if those that are leaving make room enough."""
    everybody = list(occupants)
    leaving = [occupant for occupant in everybody if occupant.is_leaving]
    open_nodes = _without(nodes, leaving)
    victims = [victim for victim in _units(everybody) if victim.rank[0] < priority]
    victims = sorted(victims, key=lambda victim: victim.rank)[:VICTIMS_MAX]

    def suffices(gone: list[Victim]) -> Cooperative[bool]:
        freed = _without(open_nodes, [occupant for victim in gone for occupant in victim.occupants])
        placement = yield from place_cooperatively(candidates, freed, needed=needed)
        return placement.is_feasible

    if not victims or (yield from suffices([])) or not (yield from suffices(victims)):
        return []
    for victim in reversed(victims):
        spared = [other for other in victims if other is not victim]
        if (yield from suffices(spared)):
            victims = spared
    return victims


def _units(occupants: Iterable[Occupant]) -> list[Victim]:
    by_unit: dict[str, list[Occupant]] = {}
    for occupant in occupants:
        if not occupant.is_leaving:
            by_unit.setdefault(occupant.unit, []).append(occupant)
    return [Victim(tuple(members)) for members in by_unit.values()]


def _without(nodes: Iterable[NodeState], gone: Iterable[Occupant]) -> list[NodeState]:
    copies = {node.name: node.copy() for node in nodes}
    for occupant in gone:
        if occupant.node in copies:
            copies[occupant.node].give_back(occupant.request)
    return list(copies.values())
