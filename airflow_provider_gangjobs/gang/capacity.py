"""Capacity: whether a gang that waits for nodes can be placed now, later or never, and who holds what it needs. Pure.

    cluster = ClusterUse(nodes)
    cluster.add(pods)
    cluster.measure(GangDemand.of(own_pods, namespace="ml", name="train-0", ranks=4, at_once=4)).text

Nodes and pods are read as a scheduler reads them: what a node has, what a pod requests, and which nodes a pod may use.
Of node selectors, required node affinity, taints, and tolerations, the rules are those of Kubernetes. An operator that
is not known here counts as met, so that a node is never left out by mistake.

Pod affinity, volumes, host ports, and resource claims are not considered, and would only leave less room. So
`never_fits` is never said of a gang that the present nodes could hold, and `room` may be too large. Nodes that are
cordoned or not ready may come back, so they count for `never_fits` and not for `room`.
"""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.kube import well_known as keys
from airflow_provider_gangjobs.kube.quantity import format_bytes, format_cpu, is_of_bytes, parse, requests_of
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.views import PHASES_TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


Amounts = dict[str, int]
"""Amount by resource name: cpu in thousandths, all others in whole units, rounded up as the scheduler does."""
CPU: Final = "cpu"
PODS: Final = "pods"
THOUSANDTHS: Final = 1000
_LIFECYCLE_TAINTS: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
)


def to_amounts(resources: Mapping[str, Any]) -> Amounts:
    """Return quantities as whole numbers.

    Raises:
        ValueError: a value is not a quantity.
    """
    return {name: math.ceil(parse(value) * (THOUSANDTHS if name == CPU else 1)) for name, value in resources.items()}


class _View(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    pass


class Taint(_View, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"

    @property
    def goes_away(self) -> bool:
        """The taint describes a state of the node, such as not being ready."""
        return self.key.startswith(_LIFECYCLE_TAINTS)


class _NodeMeta(_View, frozen=True):
    name: str = ""
    labels: dict[str, str] = {}


class _NodeSpec(_View, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class _NodeStatus(_View, frozen=True):
    allocatable: dict[str, str] = {}


class NodeView(_View, frozen=True):
    metadata: _NodeMeta = _NodeMeta()
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class Toleration(_View, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether a pod with this toleration may be placed in spite of the taint."""
        is_about = self.effect in {"", taint.effect} and self.key in {"", taint.key}
        return is_about and (self.operator != "Equal" or self.value == taint.value)


class _Requirement(_View, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def is_met(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        answers = {
            "In": value in self.values,
            "NotIn": value not in self.values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        return answers.get(self.operator, True)


class _SelectorTerm(_View, frozen=True):
    """One of the alternatives of a required node affinity. Requirements on fields of the node are not read."""

    match_expressions: tuple[_Requirement, ...] = ()


class _NodeSelector(_View, frozen=True):
    node_selector_terms: tuple[_SelectorTerm, ...] = ()


class _NodeAffinity(_View, frozen=True):
    required_during_scheduling_ignored_during_execution: _NodeSelector | None = None


class _Affinity(_View, frozen=True):
    node_affinity: _NodeAffinity | None = None


class _Resources(_View, frozen=True):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(_View, frozen=True):
    restart_policy: str = ""
    resources: _Resources = _Resources()


class _PodUseLabels(_View, frozen=True):
    """The labels that say to whom a pod belongs."""

    gang: str = msgspec.field(name=keys.LABEL_GANG, default="")
    role: str = msgspec.field(name=keys.LABEL_GANG_ROLE, default="")
    dag_id: str = msgspec.field(name=keys.LABEL_DAG_ID, default="")


class _Holder(_View, frozen=True):
    """`metadata` of a pod, as far as it says who holds what the pod uses: a DAG, a gang of no task, or a namespace."""

    namespace: str = ""
    labels: _PodUseLabels = _PodUseLabels()

    @property
    def group(self) -> str:
        """The name under which a sentence adds up what several holders hold."""
        if self.labels.dag_id:
            return f"DAG {self.labels.dag_id}"
        return f"gang {self.gang}" if self.labels.gang else f"namespace {self.namespace}"

    @property
    def gang(self) -> str:
        """The namespace and the name of the gang."""
        return f"{self.namespace}/{self.labels.gang}"


class _PodUseSpec(_View, frozen=True):
    """The fields of the `spec` of a pod by which the scheduler chooses its node."""

    node_name: str = ""
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: _Affinity | None = None
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    overhead: dict[str, str | int | float] | None = None
    resources: _Resources | None = None

    def amounts(self) -> Amounts:
        """Return the requests of the pod, which is also one of the `pods` that a node may have.

        Raises:
            ValueError: a request is not a quantity.
        """
        return {**to_amounts(requests_of(msgspec.to_builtins(self))), PODS: 1}

    @property
    def terms(self) -> tuple[_SelectorTerm, ...] | None:
        """The alternatives of the required node affinity; `None` if there is none."""
        required = self.affinity and self.affinity.node_affinity
        selector = required and required.required_during_scheduling_ignored_during_execution
        return selector.node_selector_terms if selector else None


class _PodUseStatus(_View, frozen=True):
    phase: str = "Pending"


class PodUse(_View, frozen=True):
    """A pod as the server has it, as far as it uses a node."""

    metadata: _Holder = _Holder()
    spec: _PodUseSpec = _PodUseSpec()
    status: _PodUseStatus = _PodUseStatus()


class _NodeRules(Struct, frozen=True):
    """Which nodes a pod may use. Equal rules are equal and have the same hash."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[_SelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @classmethod
    def of(cls, spec: _PodUseSpec) -> _NodeRules:
        return cls(tuple(sorted((spec.node_selector or {}).items())), spec.terms, spec.tolerations or ())

    def match_labels(self, node: NodeView) -> bool:
        """Return whether the node has the labels of the node selector and of the required node affinity."""
        labels = node.metadata.labels
        selected = all(labels.get(key) == value for key, value in self.selector)
        alternatives = (all(one.is_met(labels) for one in term.match_expressions) for term in self.terms or ())
        return selected and (self.terms is None or any(alternatives))

    def repelled_by(self, node: NodeView) -> list[Taint]:
        """Return the taints of the node that keep the pod away."""
        taints = (taint for taint in node.spec.taints if taint.effect in {"NoSchedule", "NoExecute"})
        return [taint for taint in taints if not any(one.tolerates(taint) for one in self.tolerations)]

    def allow(self, node: NodeView) -> bool:
        """Return whether the pod may be placed on the node now."""
        return self.match_labels(node) and not node.spec.unschedulable and not self.repelled_by(node)

    def allow_sometime(self, node: NodeView) -> bool:
        """Return whether the pod could be placed on the node if it were ready and not cordoned."""
        return self.match_labels(node) and all(taint.goes_away for taint in self.repelled_by(node))


HOLDERS_MAX: Final = 3
"""How many holders a sentence names."""


class Rank(Struct, frozen=True):
    """What a rank needs. Equal ranks are equal and have the same hash."""

    requests: tuple[tuple[str, int], ...]
    """Without the resources of which nothing is requested."""
    rules: _NodeRules = _NodeRules()
    role: str = ""

    @classmethod
    def of(cls, pod: PodUse) -> Rank:
        """Return what a pod needs.

        Raises:
            ValueError: a request is not a quantity.
        """
        requests = sorted((name, amount) for name, amount in pod.spec.amounts().items() if amount)
        return cls(tuple(requests), _NodeRules.of(pod.spec), pod.metadata.labels.role)

    @property
    def name(self) -> str:
        """How a sentence names one of these ranks."""
        return f"each rank of role {self.role}" if self.role else "each rank"

    def room(self, available: Mapping[str, int], at_most: int) -> int:
        """Return how many of these ranks fit into what is available."""
        return min((at_most, *(available.get(name, 0) // amount for name, amount in self.requests)))

    def describe(self, names: Sequence[str] = ()) -> str:
        """Return the requests, by default of all resources but the number of pods."""
        shown = (item for item in self.requests if (item[0] in names if names else item[0] != PODS))
        return " + ".join(_format_request(*item) for item in shown)


class GangDemand(Struct, frozen=True):
    """What a gang needs: its equal ranks with their number."""

    gang: str
    """The namespace and the name of the gang; empty for any gang that uses no node."""
    ranks: tuple[tuple[Rank, int], ...]
    at_once: int
    """How many ranks must be placed together; 1 for a gang without gang scheduling."""

    @classmethod
    def of(cls, pods: Sequence[PodUse], *, namespace: str, name: str, ranks: int, at_once: int) -> GangDemand | None:
        """Return the demand of a gang by its pods, or `None` if it is unknown.

        :param pods: All pods of the gang, or some pods of a gang whose ranks are equal.
        :param ranks: The number of ranks.
        """
        try:
            counted = Counter(Rank.of(pod) for pod in pods if pod.status.phase not in PHASES_TERMINAL)
        except ValueError:
            return None
        if len(counted) == 1:
            counted = Counter(dict.fromkeys(counted, ranks))
        known = counted.total() == ranks
        return cls(f"{namespace}/{name}", tuple(counted.items()), min(at_once, ranks)) if known else None

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(count for _, count in self.ranks)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources that some rank requests."""
        return tuple(dict.fromkeys(name for rank, _ in self.ranks for name, _ in rank.requests))

    def total(self, resource: str) -> int:
        """Return how much of a resource all ranks request together."""
        return sum(dict(rank.requests).get(resource, 0) * count for rank, count in self.ranks)

    def of_resource(self, name: str) -> GangDemand:
        """Return the ranks that request a resource, as if they requested nothing else."""
        amounts = [(rank, dict(rank.requests).get(name), count) for rank, count in self.ranks]
        return replace(
            self, ranks=tuple((replace(rank, requests=((name, n),)), count) for rank, n, count in amounts if n)
        )


class ResourceUse(Struct, frozen=True):
    """One resource on the nodes that a gang may use now."""

    name: str
    needed: int
    """What all ranks request together."""
    free: int
    total: int
    largest_free: int
    """What is free on the node that has most of it."""
    holders: tuple[tuple[_Holder, int], ...] = ()
    """Who holds how much, the largest amount first."""
    is_short: bool = False
    """The ranks would not fit even if they requested nothing else."""


class Capacity(Struct, frozen=True):
    """The answer about one gang. `text` is empty if the resources that are free have room for the gang."""

    never_fits: bool = False
    cause: str = ""
    """Why the gang can never fit; a cause of `gang.state.reason`."""
    text: str = ""
    room: int | None = None
    """How many ranks fit now; `None` if this is not known."""
    ranks: int = 0
    nodes: int = 0
    usable: int = 0
    """How many of the nodes the gang may use now."""
    resources: tuple[ResourceUse, ...] = ()


class _Node:
    """One node, and what holders use of it."""

    def __init__(self, view: NodeView) -> None:
        self.view = view
        self.allocatable = to_amounts(view.status.allocatable)
        self.free = dict(self.allocatable)
        self.used: dict[_Holder, Amounts] = {}

    def add(self, holder: _Holder, amounts: Amounts) -> None:
        """Count a pod."""
        used = self.used.setdefault(holder, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount
            self.free[name] = self.free.get(name, 0) - amount

    def free_for(self, demand: GangDemand) -> Amounts:
        """Return what is free, of the resources that a gang requests. What the gang itself uses counts as free."""
        own = [amounts for holder, amounts in self.used.items() if holder.gang == demand.gang] if demand.gang else ()
        return {
            name: max(self.free.get(name, 0) + sum(amounts.get(name, 0) for amounts in own), 0)
            for name in demand.resources
        }


class ClusterUse:
    """The nodes of a cluster, and who uses how much of them.

    :param knows_pods: False if the pods of the cluster could not be read. Then only `never_fits` is known.
    """

    def __init__(self, nodes: Iterable[NodeView], *, knows_pods: bool = True) -> None:
        self._nodes = {node.metadata.name: _Node(node) for node in nodes}
        self._knows_pods = knows_pods
        self._gangs: set[str] = set()
        """The gangs that use a node."""
        self._measured: dict[GangDemand, Capacity] = {}

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    def add(self, pods: Iterable[PodUse]) -> None:
        """Count pods that are placed and have not ended.

        Raises:
            ValueError: a request is not a quantity.
        """
        for pod in pods:
            node = self._nodes.get(pod.spec.node_name)
            if node is None or pod.status.phase in PHASES_TERMINAL:
                continue
            node.add(pod.metadata, pod.spec.amounts())
            self._gangs.add(pod.metadata.gang)

    def free(self) -> dict[str, Decimal] | None:
        """Return what is free on the nodes that are ready and not cordoned, by resource; `None` if it is unknown."""
        if not self._knows_pods:
            return None
        total: Counter[str] = Counter()
        for node in self._nodes.values():
            spec = node.view.spec
            if not spec.unschedulable and not any(taint.goes_away for taint in spec.taints):
                total.update({name: max(amount, 0) for name, amount in node.free.items() if name != PODS})
        return {name: Decimal(n) / (THOUSANDTHS if name == CPU else 1) for name, n in total.items()}

    def measure(self, demand: GangDemand) -> Capacity:
        """Return whether a gang fits now, later or never, and who holds what it needs. Call this after `add`.

        Gangs that use no node and need the same have the same answer, which is computed once.
        """
        if demand.gang not in self._gangs:
            demand = replace(demand, gang="")
        if demand not in self._measured:
            self._measured[demand] = self._measure(demand, list(self._nodes.values()))
        return self._measured[demand]

    def _measure(self, demand: GangDemand, nodes: Sequence[_Node]) -> Capacity:
        if never := _find_never(demand, nodes):
            return Capacity(
                never_fits=True, cause=never.cause, text=f"Can never fit on the present nodes: {never.text}"
            )
        if not self._knows_pods:
            return Capacity()
        usable = [node for node in nodes if any(rank.rules.allow(node.view) for rank, _ in demand.ranks)]
        free = [node.free_for(demand) for node in usable]
        room = _room(demand, usable, free)
        resources = tuple(_resource_uses(demand, usable, free))
        found = Capacity(room=room, ranks=demand.size, nodes=len(nodes), usable=len(usable), resources=resources)
        return found if room >= demand.size else replace(found, text=_describe(demand, found))


# -- never -------------------------------------------------------------------------------------------------------------


class _Never(Struct, frozen=True):
    text: str
    cause: str = "NeverFits"


def _find_never(demand: GangDemand, nodes: Sequence[_Node]) -> _Never | None:
    """Return why no set of empty nodes could hold the gang; `None` if there may be one, or if there are no nodes."""
    reasons = (_never_fits_one(rank, nodes) for rank, _ in demand.ranks if nodes)
    return next(filter(None, reasons), None) or (_never_fits_together(demand, nodes) if nodes else None)


def _never_fits_one(rank: Rank, nodes: Sequence[_Node]) -> _Never | None:
    for name, amount in rank.requests:
        if not any(node.allocatable.get(name) for node in nodes):
            return _Never(f"{rank.name} requests {_format_request(name, amount)}, and no node has this resource")
    labelled = [node.view for node in nodes if rank.rules.match_labels(node.view)]
    if not labelled:
        labels = ", ".join(f"{key}={value}" for key, value in rank.rules.selector)
        wanted = f"the node selector of {rank.name} ({labels})" if labels else f"the node affinity of {rank.name}"
        return _Never(f"no node matches {wanted}", "NodesNotMatching")
    allowed = [node for node in nodes if rank.rules.allow_sometime(node.view)]
    if not allowed:
        taints = sorted({str(one) for node in labelled for one in rank.rules.repelled_by(node) if not one.goes_away})
        where = f"{pluralize(len(labelled), 'node')} ({', '.join(taints)})"
        return _Never(f"{rank.name} does not tolerate the taints of {where}", "TaintsNotTolerated")
    which = "" if len(allowed) == len(nodes) else " that the gang may use"
    for name, amount in rank.requests:
        largest = max(node.allocatable.get(name, 0) for node in allowed)
        if amount > largest:
            what = f"{rank.name} requests {_format_request(name, amount)}"
            where = f"the largest of {pluralize(len(allowed), 'node')}{which}"
            return _Never(f"{what}, and {where} has {format_sum(name, largest)}")
    if not any(rank.room(node.allocatable, 1) for node in allowed):
        return _Never(f"{rank.name} requests {rank.describe()}, and no node{which} has all of it")
    return None


def _never_fits_together(demand: GangDemand, nodes: Sequence[_Node]) -> _Never | None:
    """Return why the ranks that must be placed together do not fit on all nodes while they are empty.

    Of a gang with several roles only this is looked at: whether all ranks of each role fit, if all must be placed.
    """
    if demand.at_once < demand.size and len(demand.ranks) > 1:
        return None
    for rank, count in demand.ranks:
        wanted = min(count, demand.at_once)
        allowed = [node for node in nodes if rank.rules.allow_sometime(node.view)]
        room = sum(rank.room(node.allocatable, wanted) for node in allowed)
        if room < wanted:
            ranks = f"{wanted} ranks{f' of role {rank.role}' if rank.role else ''} with {rank.describe()} each"
            have = f"{pluralize(len(allowed), 'node')} {'has' if len(allowed) == 1 else 'have'}"
            return _Never(f"{ranks} are placed together, and {have} room for {room} even when empty")
    return None


# -- now ---------------------------------------------------------------------------------------------------------------


def _room(demand: GangDemand, nodes: Sequence[_Node], free: Sequence[Amounts]) -> int:
    """Return how many ranks fit now. With several roles, the larger ranks come first, which is an estimate.

    :param nodes: The nodes that some rank may use.
    :param free: What is free on each node.
    """
    left_on = [dict(amounts) for amounts in free]
    placed = 0
    for rank, count in sorted(demand.ranks, key=lambda item: [amount for _, amount in item[0].requests], reverse=True):
        left = count
        for node, amounts in zip(nodes, left_on, strict=True):
            if left and (len(demand.ranks) == 1 or rank.rules.allow(node.view)):
                here = rank.room(amounts, left)
                amounts.update({name: amounts[name] - here * amount for name, amount in rank.requests})
                left -= here
        placed += count - left
    return placed


def _resource_uses(demand: GangDemand, nodes: Sequence[_Node], free: Sequence[Amounts]) -> Iterator[ResourceUse]:
    held: dict[str, Counter[_Holder]] = {name: Counter() for name in demand.resources}
    for node in nodes:
        for holder, amounts in node.used.items():
            for name in demand.resources if holder.gang != demand.gang else ():
                held[name][holder] += amounts.get(name, 0)
    for name in demand.resources:
        only = demand.of_resource(name)
        yield ResourceUse(
            name,
            needed=demand.total(name),
            free=sum(amounts[name] for amounts in free),
            total=sum(node.allocatable.get(name, 0) for node in nodes),
            largest_free=max((amounts[name] for amounts in free), default=0),
            holders=tuple((holder, amount) for holder, amount in held[name].most_common() if amount),
            is_short=_room(only, nodes, free) < only.size,
        )


# -- texts -------------------------------------------------------------------------------------------------------------


def _describe(demand: GangDemand, found: Capacity) -> str:
    """Return how much is needed and free, and who holds the rest."""
    short = [use for use in found.resources if use.is_short]
    shown = short or [use for use in found.resources if use.name != PODS]
    wanted = " and ".join(f"{count} x {rank.describe([use.name for use in shown])}" for rank, count in demand.ranks)
    where = "" if found.usable == found.nodes else f" on {found.usable} of {pluralize(found.nodes, 'node')}"
    is_scattered = found.usable > 1 and (not found.room or any(use.free >= use.needed for use in shown))
    free = " and ".join(_describe_free(use, with_largest=is_scattered) for use in shown)
    needs = f"Needs {wanted}; {free} are free{where}, room for {found.room} of {found.ranks} ranks now"
    return ". ".join(filter(None, (needs, _describe_holders(shown))))


def _describe_free(use: ResourceUse, *, with_largest: bool) -> str:
    largest = f" ({format_sum(use.name, use.largest_free)} on one node)" if with_largest else ""
    return f"{format_sum(use.name, use.free)} of {format_sum(use.name, use.total)}{_unit(use.name)}{largest}"


def _describe_holders(shown: Sequence[ResourceUse]) -> str:
    """Return who holds the resource that is missing most."""
    use = max(shown, key=lambda use: (use.needed - use.free) / max(use.total, 1))
    amounts: Counter[str] = Counter()
    gangs: dict[str, set[str]] = {}
    for holder, amount in use.holders:
        amounts[holder.group] += amount
        gangs.setdefault(holder.group, set()).add(holder.gang)
    named = amounts.most_common(HOLDERS_MAX)
    parts = [(n, group + (f" ({len(gangs[group])} gangs)" if len(gangs[group]) > 1 else "")) for group, n in named]
    if others := amounts.total() - sum(amount for amount, _ in parts):
        parts.append((others, f"{len(amounts) - len(parts)} others"))
    held = f"{_unit(use.name)} are held"
    texts = (f"{format_sum(use.name, n)}{'' if number else held} by {who}" for number, (n, who) in enumerate(parts))
    return ", ".join(texts)


def _unit(name: str) -> str:
    return " CPU" if name == CPU else f" {name}"


def _format_request(name: str, amount: int) -> str:
    """Return a request as a manifest has it, with the name of its resource: `1500m CPU`, `2Gi memory`."""
    if name == CPU:
        return f"{format_cpu(parse(amount) / THOUSANDTHS)}{_unit(name)}"
    return f"{format_bytes(parse(amount)) if is_of_bytes(name) else amount}{_unit(name)}"


def format_sum(name: str, amount: int) -> str:
    """Return a sum: CPU, which is given in thousandths, and GiB with at most two decimal places, rounded down."""
    if name == CPU:
        return _decimal(amount / THOUSANDTHS)
    return f"{_decimal(amount / 2**30)}Gi" if is_of_bytes(name) else str(amount)


def _decimal(number: float) -> str:
    return f"{math.floor(number * 100 + 1e-6) / 100:.2f}".rstrip("0").rstrip(".")
