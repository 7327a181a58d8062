"""Placing pods on one snapshot of the nodes: all that are needed, or none. Pure.

Pods are tried in the order given, each on the node that it leaves least allocated; a pod placed takes its room from the
later ones. The result is a proposal: the snapshot is copied, and nothing is bound here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.sandbox.scheduler import filters
from airflow_provider_gangjobs.sandbox.scheduler.nodes import PODS, NodeState, Obj, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.objects.quantity import ResourceList

_SCORED = {"cpu": Decimal("0.1"), "memory": Decimal(200 * 1024**2)}
"""The resources that the score is about, with what a pod that names none is taken to use."""
_SCORE_MAX = 100


@dataclass(frozen=True)
class Candidate:
    """A pod to place."""

    pod: Obj
    request: ResourceList
    shape: str

    @classmethod
    def of(cls, pod: Obj) -> Candidate:
        return cls(pod, request_of(pod), filters.shape_of(pod))

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])


@dataclass(frozen=True)
class Shortfall:
    """The moment at which it was clear that not enough pods would fit."""

    placed: int
    remaining: int
    """Pods that had not been tried."""
    diagnosis: str


@dataclass
class Placement:
    """Which pod goes where, and why others cannot."""

    nodes: dict[str, str] = field(default_factory=dict)
    """Node by pod uid; a proposal only if `is_feasible`."""
    refused: dict[str, str] = field(default_factory=dict)
    """By pod uid, why no node takes it."""
    shortfall: Shortfall | None = None

    @property
    def is_feasible(self) -> bool:
        return self.shortfall is None


def place(candidates: Sequence[Candidate], nodes: Iterable[NodeState], *, needed: int) -> Placement:
    """Find nodes for the candidates; feasible only if at least `needed` of them find one."""
    snapshot = _Snapshot(nodes)
    placement = Placement()
    for position, candidate in enumerate(candidates):
        node = snapshot.best_for(candidate)
        if node is not None:
            node.take(candidate.request)
            placement.nodes[candidate.uid] = node.name
            continue
        diagnosis = snapshot.diagnose(candidate)
        placement.refused[candidate.uid] = diagnosis
        remaining = len(candidates) - position - 1
        if placement.shortfall is None and len(placement.nodes) + remaining < needed:
            placement.shortfall = Shortfall(len(placement.nodes), remaining, diagnosis)
    if placement.shortfall is None and len(placement.nodes) < needed:
        placement.shortfall = Shortfall(len(placement.nodes), 0, "")
    return placement


class _Snapshot:
    """The nodes during one placement. Room only shrinks, so a request that failed fails again."""

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        self._nodes = sorted((node.copy() for node in nodes), key=lambda node: node.name)
        self._refusals: dict[str, list[str | None]] = {}
        self._failed: dict[tuple[str, frozenset[tuple[str, Decimal]]], str] = {}

    def best_for(self, candidate: Candidate) -> NodeState | None:
        if _likeness(candidate) in self._failed:
            return None
        refusals = self._refusals_of(candidate)
        fitting = (
            node
            for node, refused in zip(self._nodes, refusals, strict=True)
            if refused is None and not filters.shortages(candidate.request, node)
        )
        return max(fitting, key=lambda node: (_score(candidate.request, node), node.free[PODS]), default=None)

    def diagnose(self, candidate: Candidate) -> str:
        """`0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`"""
        likeness = _likeness(candidate)
        if likeness not in self._failed:
            self._failed[likeness] = self._diagnose(candidate)
        return self._failed[likeness]

    def _diagnose(self, candidate: Candidate) -> str:
        if not self._nodes:
            return "no nodes available to schedule pods"
        reasons: Counter[str] = Counter()
        for node, refused in zip(self._nodes, self._refusals_of(candidate), strict=True):
            reasons.update([refused] if refused else filters.shortages(candidate.request, node))
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return f"0/{len(self._nodes)} nodes are available: {listed}."

    def _refusals_of(self, candidate: Candidate) -> list[str | None]:
        known = self._refusals.get(candidate.shape)
        if known is None:
            known = [filters.refusal(candidate.pod, node.obj) for node in self._nodes]
            self._refusals[candidate.shape] = known
        return known


def _score(request: Mapping[str, Decimal], node: NodeState) -> int:
    """How little of the node would be allocated, 0 to 100, as NodeResourcesLeastAllocated counts."""
    scores = []
    for name, assumed in _SCORED.items():
        whole = node.allocatable.get(name, Decimal(0))
        left = node.free.get(name, Decimal(0)) - (request.get(name) or assumed)
        scores.append(int(left * _SCORE_MAX / whole) if whole > 0 and left > 0 else 0)
    return sum(scores) // len(scores)


def _likeness(candidate: Candidate) -> tuple[str, frozenset[tuple[str, Decimal]]]:
    return candidate.shape, frozenset(candidate.request.items())
