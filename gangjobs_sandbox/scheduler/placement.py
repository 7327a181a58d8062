"""Places pods on one snapshot of the nodes: as many as needed, or none. Pure.

Pods are tried in the given order, each on the node that it leaves least allocated. The result is a proposal: the
snapshot is a copy, and nothing is bound here. The placement of a large gang is cooperative.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.apimachinery.selectors import Operator, Requirement
from gangjobs_sandbox.controllers.meta import NO_SCHEDULE, UNSCHEDULABLE, first_untolerated, tolerates
from gangjobs_sandbox.cooperative import run_to_completion
from gangjobs_sandbox.scheduler.nodes import PODS, NodeState, Obj, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gangjobs_sandbox.apimachinery.quantity import ResourceList
    from gangjobs_sandbox.cooperative import Cooperative

_SCORED = {"cpu": Decimal("0.1"), "memory": Decimal(200 * 1024**2)}
"""The scored resources, with the amounts that are assumed for a pod that does not request them."""
_SCORE_MAX = 100

EquivalenceClass = tuple[str, frozenset[tuple[str, Decimal]]]
Rank = tuple[int, Decimal, int]
"""The sort key of a node: the negative score, the negative number of free pods, and the position by name.

The node with the lowest rank is the best.
"""


@dataclass(frozen=True)
class Candidate:
    """A pod to place. Pods of one equivalence class have the same score on each node."""

    pod: Obj
    request: ResourceList
    shape: str
    equivalence_class: EquivalenceClass

    @classmethod
    def of(cls, pod: Obj) -> Candidate:
        request, shape = request_of(pod), shape_of(pod)
        return cls(pod, request, shape, (shape, frozenset(request.items())))

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])


@dataclass(frozen=True)
class Refusal:
    """The reason why no node fits a pod."""

    text: str
    """The message, such as `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`"""
    nodes: int
    """The number of nodes."""
    hopeless: int
    """The number of nodes that the pod would not fit even if they were empty."""
    is_by_prefilter: bool = False
    """Whether the reason is the pod itself, so that no node was looked at."""


@dataclass(frozen=True)
class Shortfall:
    """The state of the placement when it became clear that too few pods fit."""

    placed: int
    remaining: int
    """The number of pods that were not tried."""


@dataclass
class Placement:
    """The result of a placement: the nodes of the pods, and the reasons why other pods do not fit."""

    nodes: dict[str, str] = field(default_factory=dict)
    """The node by pod UID. The mapping is only a proposal unless `is_feasible`."""
    refused: dict[str, Refusal] = field(default_factory=dict)
    """By pod UID, the reason why no node fits the pod."""
    shortfall: Shortfall | None = None

    @property
    def is_feasible(self) -> bool:
        return self.shortfall is None


def place(candidates: Sequence[Candidate], nodes: Iterable[NodeState], *, needed: int) -> Placement:
    """Place the candidates. The placement is feasible only if at least `needed` of them fit."""
    return run_to_completion(place_cooperatively(candidates, nodes, needed=needed))


def place_cooperatively(
    candidates: Sequence[Candidate], nodes: Iterable[NodeState], *, needed: int
) -> Cooperative[Placement]:
    """Do the same as `place` cooperatively, on a snapshot of the nodes from the start of the call."""
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
    """The nodes during one placement. Free resources only decrease, so a request that failed fails again.

    For the same reason, the rank of a node only gets worse. For each equivalence class, the nodes are a heap by their
    last known ranks, and only the first node of the heap must be ranked again. A gang of equal pods ranks about one
    node for each pod.
    """

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        self._nodes = sorted((node.copy() for node in nodes), key=lambda node: node.name)
        self._placed = [0] * len(self._nodes)
        self._heaps: dict[EquivalenceClass, list[tuple[Rank, int]]] = {}
        """The rank, and the number of pods on the node at the time of the ranking."""
        self._refusals: dict[str, list[str | None]] = {}
        self._failed: dict[EquivalenceClass, Refusal] = {}

    def take_best(self, candidate: Candidate) -> str | None:
        """Place the candidate on the node with the best rank. Returns the node, or None if no node fits."""
        if candidate.equivalence_class in self._failed:
            return None
        if missing_claim(candidate.pod) is not None:
            return None
        heap = self._heap_for(candidate)
        while heap:
            (_, _, position), placed = heap[0]
            if placed == self._placed[position]:
                self._nodes[position].reserve(candidate.request)
                self._placed[position] += 1
                return self._nodes[position].name
            rank = self._rank(candidate, position)
            if rank is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (rank, self._placed[position]))
        return None

    def _heap_for(self, candidate: Candidate) -> list[tuple[Rank, int]]:
        heap = self._heaps.get(candidate.equivalence_class)
        if heap is None:
            ranks = (self._rank(candidate, position) for position in range(len(self._nodes)))
            heap = [(rank, self._placed[rank[2]]) for rank in ranks if rank is not None]
            heapq.heapify(heap)
            self._heaps[candidate.equivalence_class] = heap
        return heap

    def _rank(self, candidate: Candidate, position: int) -> Rank | None:
        node = self._nodes[position]
        if self._refusals_of(candidate)[position] or shortages(candidate.request, node):
            return None
        return -_score(candidate.request, node), -node.free[PODS], position

    def diagnose(self, candidate: Candidate) -> Refusal:
        """Return why no node fits the candidate."""
        if candidate.equivalence_class not in self._failed:
            self._failed[candidate.equivalence_class] = self._diagnose(candidate)
        return self._failed[candidate.equivalence_class]

    def _diagnose(self, candidate: Candidate) -> Refusal:
        if not self._nodes:
            return Refusal("no nodes available to schedule pods", 0, 0)
        count = len(self._nodes)
        if claim := missing_claim(candidate.pod):
            return Refusal(f"0/{count} nodes are available: {claim}.", count, count, is_by_prefilter=True)
        reasons: Counter[str] = Counter()
        hopeless = 0
        for node, refused in zip(self._nodes, self._refusals_of(candidate), strict=True):
            reasons.update([refused] if refused else shortages(candidate.request, node))
            hopeless += bool(refused or quantity.fits(candidate.request, node.allocatable))
        listed = ", ".join(sorted(f"{nodes} {reason}" for reason, nodes in reasons.items()))
        return Refusal(f"0/{count} nodes are available: {listed}.", count, hopeless)

    def _refusals_of(self, candidate: Candidate) -> list[str | None]:
        known = self._refusals.get(candidate.shape)
        if known is None:
            known = [refusal(candidate.pod, node.obj) for node in self._nodes]
            self._refusals[candidate.shape] = known
        return known


def _score(request: Mapping[str, Decimal], node: NodeState) -> int:
    """Return how little of the node would be allocated, from 0 to 100, as NodeResourcesLeastAllocated does."""
    scores = []
    for name, assumed in _SCORED.items():
        whole = node.allocatable.get(name, Decimal(0))
        left = node.free.get(name, Decimal(0)) - (request.get(name) or assumed)
        scores.append(int(left * _SCORE_MAX / whole) if whole > 0 and left > 0 else 0)
    return sum(scores) // len(scores)


# -- why a node does not suit a pod, in the texts of the filter plugins of kube-scheduler ----------------------------


_UNSCHEDULABLE_TAINT = {"key": UNSCHEDULABLE, "effect": NO_SCHEDULE}


def matches_affinity(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Return whether the pod's nodeSelector and required node affinity accept the node."""
    labels = node["metadata"].get("labels") or {}
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    required = _required(pod)
    if required is None:
        return True
    # Terms are alternatives. A term without requirements accepts no node.
    return any(_term_matches(term, labels, node) for term in required.get("nodeSelectorTerms") or ())


def _required(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    node_affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required: Mapping[str, Any] | None = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str], node: Mapping[str, Any]) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    own_fields = {"metadata.name": node["metadata"]["name"]}
    return all(_requirement(one).matches(labels) for one in expressions) and all(
        _requirement(one).matches(own_fields) for one in fields
    )


def _requirement(expression: Mapping[str, Any]) -> Requirement:
    values = frozenset(expression.get("values") or ())
    return Requirement(expression["key"], Operator(expression["operator"]), values)


def refusal(pod: Mapping[str, Any], node: Obj) -> str | None:
    """Return why the pod does not fit even on an empty node. The first plugin that refuses determines the text."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable") and not any(
        tolerates(one, _UNSCHEDULABLE_TAINT) for one in pod["spec"].get("tolerations") or ()
    ):
        return "node(s) were unschedulable"
    if first_untolerated(pod, spec.get("taints") or ()) is not None:
        return "node(s) had untolerated taint(s)"
    if not matches_affinity(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def missing_claim(pod: Mapping[str, Any]) -> str | None:
    """Return why no node suits the pod: it names a PersistentVolumeClaim, and the sandbox has none."""
    claims = _claims_of(pod)
    return f'persistentvolumeclaim "{claims[0]}" not found' if claims else None


def _claims_of(pod: Mapping[str, Any]) -> list[str]:
    sources = (volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or ())
    return [source["claimName"] for source in sources if source]


def shortages(request: Mapping[str, Decimal], node: NodeState) -> list[str]:
    """Return one message for each resource of which the node has too little for this request."""
    return ["Too many pods" if name == PODS else f"Insufficient {name}" for name in quantity.fits(request, node.free)]


def shape_of(pod: Mapping[str, Any]) -> str:
    """Return the part of a pod that `refusal` and `missing_claim` depend on.

    The result for one shape and node can be reused.
    """
    spec = pod["spec"]
    return repr((spec.get("nodeSelector"), spec.get("affinity"), spec.get("tolerations"), _claims_of(pod)))
