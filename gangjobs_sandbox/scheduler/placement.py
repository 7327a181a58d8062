"""Places pods on one snapshot of the nodes: as many as needed, or none. Pure.

Pods are tried in the given order, each on the node that it leaves least allocated. The result is a proposal: the
snapshot is a copy, and nothing is bound here. The placement of a large gang is cooperative.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.kube import quantity
from gangjobs_sandbox.cooperative import run_to_completion
from gangjobs_sandbox.scheduler import filters
from gangjobs_sandbox.scheduler.nodes import PODS, NodeState, Obj, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_gangjobs.kube.quantity import ResourceList
    from gangjobs_sandbox.cooperative import Cooperative

_SCORED = {"cpu": Decimal("0.1"), "memory": Decimal(200 * 1024**2)}
"""The resources that the score is about, with what a pod that names none is taken to use."""
_SCORE_MAX = 100

Likeness = tuple[str, frozenset[tuple[str, Decimal]]]
Rank = tuple[int, Decimal, int]
"""The lower, the better: a node's score and places left, both negative, then its position by name."""


@dataclass(frozen=True)
class Candidate:
    """A pod to place. Pods of equal likeness suit the same nodes equally well."""

    pod: Obj
    request: ResourceList
    shape: str
    likeness: Likeness

    @classmethod
    def of(cls, pod: Obj) -> Candidate:
        request, shape = request_of(pod), filters.shape_of(pod)
        return cls(pod, request, shape, (shape, frozenset(request.items())))

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])


@dataclass(frozen=True)
class Refusal:
    """Why no node takes a pod."""

    text: str
    """`0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`"""
    nodes: int
    hopeless: int
    """Nodes that would not take it even if they were empty."""


@dataclass(frozen=True)
class Shortfall:
    """The moment at which it was clear that not enough pods would fit."""

    placed: int
    remaining: int
    """Pods that had not been tried."""


@dataclass
class Placement:
    """Which pod goes where, and why others cannot."""

    nodes: dict[str, str] = field(default_factory=dict)
    """Node by pod uid; a proposal only if `is_feasible`."""
    refused: dict[str, Refusal] = field(default_factory=dict)
    """By pod uid."""
    shortfall: Shortfall | None = None

    @property
    def is_feasible(self) -> bool:
        return self.shortfall is None


def place(candidates: Sequence[Candidate], nodes: Iterable[NodeState], *, needed: int) -> Placement:
    """Find nodes for the candidates; feasible only if at least `needed` of them find one."""
    return run_to_completion(place_cooperatively(candidates, nodes, needed=needed))


def place_cooperatively(
    candidates: Sequence[Candidate], nodes: Iterable[NodeState], *, needed: int
) -> Cooperative[Placement]:
    """Do the work of `place` cooperatively, on a snapshot of the nodes from the beginning."""
    snapshot = _Snapshot(nodes)
    placement = Placement()
    for position, candidate in enumerate(candidates):
        yield
        node = snapshot.take_best(candidate)
        if node is not None:
            placement.nodes[candidate.uid] = node
            continue
        placement.refused[candidate.uid] = snapshot.diagnose(candidate)
        remaining = len(candidates) - position - 1
        if placement.shortfall is None and len(placement.nodes) + remaining < needed:
            placement.shortfall = Shortfall(len(placement.nodes), remaining)
    if placement.shortfall is None and len(placement.nodes) < needed:
        placement.shortfall = Shortfall(len(placement.nodes), 0)
    return placement


class _Snapshot:
    """The nodes during one placement. Room only shrinks, so a request that failed fails again.

    For the same reason a node's rank only gets worse: per likeness the nodes are a heap by their last known ranks, of
    which only the first need be looked at again. A gang of equal pods ranks about one node for each pod.
    """

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        self._nodes = sorted((node.copy() for node in nodes), key=lambda node: node.name)
        self._placed = [0] * len(self._nodes)
        self._heaps: dict[Likeness, list[tuple[Rank, int]]] = {}
        """Rank, and how many pods had been placed on the node by then."""
        self._refusals: dict[str, list[str | None]] = {}
        self._failed: dict[Likeness, Refusal] = {}

    def take_best(self, candidate: Candidate) -> str | None:
        """Place the candidate where it leaves the most room. Returns the node, None if no node suits."""
        if candidate.likeness in self._failed:
            return None
        heap = self._heap_for(candidate)
        while heap:
            (_, _, position), placed = heap[0]
            if placed == self._placed[position]:
                self._nodes[position].take(candidate.request)
                self._placed[position] += 1
                return self._nodes[position].name
            rank = self._rank(candidate, position)
            if rank is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (rank, self._placed[position]))
        return None

    def _heap_for(self, candidate: Candidate) -> list[tuple[Rank, int]]:
        heap = self._heaps.get(candidate.likeness)
        if heap is None:
            ranks = (self._rank(candidate, position) for position in range(len(self._nodes)))
            heap = [(rank, self._placed[rank[2]]) for rank in ranks if rank is not None]
            heapq.heapify(heap)
            self._heaps[candidate.likeness] = heap
        return heap

    def _rank(self, candidate: Candidate, position: int) -> Rank | None:
        node = self._nodes[position]
        if self._refusals_of(candidate)[position] or filters.shortages(candidate.request, node):
            return None
        return -_score(candidate.request, node), -node.free[PODS], position

    def diagnose(self, candidate: Candidate) -> Refusal:
        """Why no node takes the candidate."""
        if candidate.likeness not in self._failed:
            self._failed[candidate.likeness] = self._diagnose(candidate)
        return self._failed[candidate.likeness]

    def _diagnose(self, candidate: Candidate) -> Refusal:
        if not self._nodes:
            return Refusal("no nodes available to schedule pods", 0, 0)
        reasons: Counter[str] = Counter()
        hopeless = 0
        for node, refused in zip(self._nodes, self._refusals_of(candidate), strict=True):
            reasons.update([refused] if refused else filters.shortages(candidate.request, node))
            hopeless += bool(refused or quantity.fits(candidate.request, node.allocatable))
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        count = len(self._nodes)
        return Refusal(f"0/{count} nodes are available: {listed}.", count, hopeless)

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
