"""Capacity: whether a gang that waits for nodes can be placed now, later or never, and who holds what it needs. Pure.

    cluster = ClusterUse(nodes)
    cluster.add(pods)
    cluster.measure(GangDemand.of(own_pods, namespace="ml", name="train-0", ranks=4, at_once=4)).text

Amounts are added as kube-scheduler adds them. Pod affinity, volumes, host ports, and resource claims are not
considered, and would only leave less room. So `never_fits` is never said of a gang that could be placed, and `room` may
be too large. Lifecycle taints, such as those of a node that is not ready, and cordons go away, so they count for `room`
and not for `never_fits`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.kube import names as keys
from airflow_provider_gangjobs.kube.quantity import format_bytes, format_cpu, parse, requests_of
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.views import PHASES_TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HOLDERS_MAX: Final = 3
"""How many holders a sentence names."""
_LIFECYCLE_TAINTS: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
)


class _View(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    pass


class Taint(_View, frozen=True):
    """An item of `spec.taints` of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"

    @property
    def repels(self) -> bool:
        """The scheduler does not place a pod on the node that does not tolerate the taint."""
        return self.effect in {"NoSchedule", "NoExecute"}

    @property
    def passes(self) -> bool:
        """The taint describes a state of the node that may go away by itself."""
        return self.key.startswith(_LIFECYCLE_TAINTS)


class NodeMeta(_View, frozen=True):
    """`metadata` of a node."""

    name: str = ""
    labels: dict[str, str] = {}


class NodeSpec(_View, frozen=True):
    """The fields of the `spec` of a node that are read."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(_View, frozen=True):
    """The fields of the `status` of a node that are read."""

    allocatable: dict[str, str] = {}


class NodeView(_View, frozen=True):
    """A node as the server has it."""

    metadata: NodeMeta = NodeMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Toleration(_View, frozen=True):
    """An item of `spec.tolerations` of a pod."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether a pod with this toleration may be placed in spite of the taint.

        An operator that is not known tolerates the taint, so that nothing is called impossible by mistake.
        """
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        return self.operator != "Equal" or self.value == taint.value


class Requirement(_View, frozen=True):
    """A requirement of a node selector term."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Return whether the labels or fields meet the requirement. An unknown operator is met."""
        has = fields.get(self.key)
        match self.operator:
            case "In":
                return has in self.values
            case "NotIn":
                return has not in self.values
            case "Exists":
                return has is not None
            case "DoesNotExist":
                return has is None
            case "Gt" | "Lt":
                return has is not None and self._compares(has)
            case _:
                return True

    def _compares(self, has: str) -> bool:
        try:
            left, right = int(has), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return left > right if self.operator == "Gt" else left < right


class SelectorTerm(_View, frozen=True):
    """One of the alternatives of a required node affinity."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()

    def matches(self, node: NodeMeta) -> bool:
        """Return whether the node meets all requirements. A term without requirements matches no node."""
        fields = {"metadata.name": node.name}
        all_met = all(one.matches(node.labels) for one in self.match_expressions)
        return (
            bool(self.match_expressions or self.match_fields)
            and all_met
            and all(one.matches(fields) for one in self.match_fields)
        )


class _NodeSelector(_View, frozen=True):
    node_selector_terms: tuple[SelectorTerm, ...] = ()


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


class PodUseLabels(_View, frozen=True):
    """The labels that say to whom a pod belongs."""

    gang: str = msgspec.field(name=keys.LABEL_GANG, default="")
    role: str = msgspec.field(name=keys.LABEL_GANG_ROLE, default="")
    dag_id: str = msgspec.field(name=keys.LABEL_DAG_ID, default="")
    task_id: str = msgspec.field(name=keys.LABEL_TASK_ID, default="")


class PodUseMeta(_View, frozen=True):
    """`metadata` of a pod, as far as it says to whom the pod belongs."""

    name: str = ""
    namespace: str = ""
    labels: PodUseLabels = PodUseLabels()


class PodUseSpec(_View, frozen=True):
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
        """Return the requests of the pod, which is also one of the `pods` that a node may have."""
        return {**to_amounts(requests_of(msgspec.to_builtins(self))), PODS: 1}

    @property
    def terms(self) -> tuple[SelectorTerm, ...] | None:
        """The alternatives of the required node affinity; `None` if there is none."""
        required = self.affinity and self.affinity.node_affinity
        selector = required and required.required_during_scheduling_ignored_during_execution
        return selector.node_selector_terms if selector else None


class PodUseStatus(_View, frozen=True):
    """The fields of the `status` of a pod that are read."""

    phase: str = "Pending"


class PodUse(_View, frozen=True):
    """A pod of the cluster as the server has it, as far as it uses a node."""

    metadata: PodUseMeta = PodUseMeta()
    spec: PodUseSpec = PodUseSpec()
    status: PodUseStatus = PodUseStatus()


Amounts = dict[str, int]
"""Amount by resource name: cpu in thousandths, all others in whole units, rounded up as the scheduler does."""
CPU: Final = "cpu"
PODS: Final = "pods"
_THOUSANDTHS: Final = 1000


def to_amounts(resources: Mapping[str, Any]) -> Amounts:
    """Return quantities as whole numbers.

    Raises:
        ValueError: a value is not a quantity.
    """
    return {name: _whole(name, quantity) for name, quantity in resources.items()}


def _whole(name: str, quantity: Any) -> int:
    return math.ceil(parse(quantity) * (_THOUSANDTHS if name == CPU else 1))


class Rank(Struct, frozen=True):
    """What equal ranks of a gang need, hashable, so that equal ranks are counted."""

    requests: tuple[tuple[str, int], ...]
    """Without the resources of which nothing is requested."""
    role: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[SelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @classmethod
    def of(cls, pod: PodUse) -> Rank:
        """Return what a pod needs.

        Raises:
            ValueError: a request is not a quantity.
        """
        spec = pod.spec
        return cls(
            tuple(sorted((name, amount) for name, amount in spec.amounts().items() if amount)),
            pod.metadata.labels.role,
            tuple(sorted((spec.node_selector or {}).items())),
            spec.terms,
            spec.tolerations or (),
        )

    @property
    def name(self) -> str:
        """How a sentence names one of these ranks."""
        return f"each rank of role {self.role}" if self.role else "each rank"

    def has_labels(self, node: NodeMeta) -> bool:
        """Return whether the node has the labels of the node selector and of the required node affinity."""
        selected = all(node.labels.get(key) == value for key, value in self.selector)
        return selected and (self.terms is None or any(term.matches(node) for term in self.terms))

    def repelled_by(self, node: NodeView) -> list[Taint]:
        """Return the taints of the node that keep these ranks away."""
        taints = (taint for taint in node.spec.taints if taint.repels)
        return [taint for taint in taints if not any(one.tolerates(taint) for one in self.tolerations)]

    def may_ever_use(self, node: NodeView) -> bool:
        """Return whether the ranks could be placed on the node if it were empty and ready."""
        return self.has_labels(node.metadata) and all(taint.passes for taint in self.repelled_by(node))

    def may_use(self, node: NodeView) -> bool:
        """Return whether the ranks may be placed on the node now."""
        return self.has_labels(node.metadata) and not node.spec.unschedulable and not self.repelled_by(node)

    def room(self, available: Mapping[str, int], at_most: int) -> int:
        """Return how many of these ranks fit into what is available."""
        room = (max(available.get(name, 0), 0) // amount for name, amount in self.requests)
        return min(room, default=at_most) if self.requests else at_most


class GangDemand(Struct, frozen=True):
    """What a gang needs: its equal ranks with their number."""

    namespace: str
    name: str
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
        if counted.total() != ranks:
            return None
        return cls(namespace, name, tuple(counted.items()), min(at_once, ranks))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(count for _, count in self.ranks)

    def total(self, resource: str) -> int:
        """Return how much of a resource all ranks request together."""
        return sum(dict(rank.requests).get(resource, 0) * count for rank, count in self.ranks)

    def of_resource(self, name: str) -> GangDemand:
        """Return the ranks that request a resource, as if they requested nothing else."""
        amounts = [(rank, dict(rank.requests).get(name), count) for rank, count in self.ranks]
        ranks = [(msgspec.structs.replace(rank, requests=((name, n),)), count) for rank, n, count in amounts if n]
        return msgspec.structs.replace(self, ranks=tuple(ranks))

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources that some rank requests."""
        return tuple(dict.fromkeys(name for rank, _ in self.ranks for name, _ in rank.requests))


class Holder(Struct, frozen=True, order=True):
    """Who holds resources: a task, a gang of unknown task, or a namespace."""

    namespace: str
    gang: str = ""
    dag_id: str = ""
    task_id: str = ""

    @classmethod
    def of(cls, pod: PodUse) -> Holder:
        """Return who holds the resources of a pod."""
        labels = pod.metadata.labels
        return cls(pod.metadata.namespace, labels.gang, labels.dag_id, labels.task_id)

    @property
    def group(self) -> str:
        """The name under which a sentence adds up what several holders hold."""
        if self.dag_id:
            return f"DAG {self.dag_id}"
        return f"gang {self.namespace}/{self.gang}" if self.gang else f"namespace {self.namespace}"


class _Node:
    """One node, and what holders use of it."""

    __slots__ = ("allocatable", "used", "view")

    def __init__(self, view: NodeView) -> None:
        self.view = view
        self.allocatable = to_amounts(view.status.allocatable)
        self.used: dict[Holder, Amounts] = {}

    def free(self, demand: GangDemand) -> Amounts:
        """Return what is free, of the resources that a gang requests. What the gang itself uses counts as free."""
        others = [amounts for holder, amounts in self.used.items() if not _is_own(holder, demand)]
        return {
            name: max(self.allocatable.get(name, 0) - sum(amounts.get(name, 0) for amounts in others), 0)
            for name in demand.resources
        }


def _is_own(holder: Holder, demand: GangDemand) -> bool:
    return (holder.namespace, holder.gang) == (demand.namespace, demand.name)


class ClusterUse:
    """The nodes of a cluster, and who uses how much of them.

    :param knows_pods: False if the pods of the cluster could not be read. Then only `never_fits` is known.
    """

    def __init__(self, nodes: Iterable[NodeView], *, knows_pods: bool = True) -> None:
        self._nodes = {node.metadata.name: _Node(node) for node in nodes}
        self._knows_pods = knows_pods
        self._gangs: set[tuple[str, str]] = set()
        """The gangs that use a node."""
        self._measured: dict[GangDemand, Capacity] = {}

    def add(self, pods: Iterable[PodUse]) -> None:
        """Count pods that are placed and have not ended.

        Raises:
            ValueError: a request is not a quantity.
        """
        for pod in pods:
            node = self._nodes.get(pod.spec.node_name)
            if node is None or pod.status.phase in PHASES_TERMINAL:
                continue
            holder = Holder.of(pod)
            used = node.used.setdefault(holder, {})
            for name, amount in pod.spec.amounts().items():
                used[name] = used.get(name, 0) + amount
            self._gangs.add((holder.namespace, holder.gang))

    def measure(self, demand: GangDemand) -> Capacity:
        """Return whether a gang fits now, later or never, and who holds what it needs. Call this after `add`.

        Gangs that use no node and need the same have the same answer, which is computed once.
        """
        if (demand.namespace, demand.name) not in self._gangs:
            demand = msgspec.structs.replace(demand, namespace="", name="")
        if demand not in self._measured:
            self._measured[demand] = self._measure(demand)
        return self._measured[demand]

    def _measure(self, demand: GangDemand) -> Capacity:
        nodes = list(self._nodes.values())
        if never := _find_never(demand, nodes):
            return Capacity(never_fits=True, text=f"Can never fit: {never}")
        if not self._knows_pods:
            return Capacity()
        usable = [node for node in nodes if any(rank.may_use(node.view) for rank, _ in demand.ranks)]
        free = [node.free(demand) for node in usable]
        room = _room(demand, usable, [dict(amounts) for amounts in free])
        resources = tuple(_resource_use(name, demand, usable, free) for name in demand.resources)
        found = Capacity(room=room, ranks=demand.size, nodes=len(nodes), usable=len(usable), resources=resources)
        return found if room >= demand.size else msgspec.structs.replace(found, text=_describe(demand, found))


class Held(Struct, frozen=True):
    """How much of a resource a holder has on the nodes that the gang may use."""

    holder: Holder
    amount: int


class ResourceUse(Struct, frozen=True):
    """One resource on the nodes that a gang may use now."""

    name: str
    needed: int
    """What all ranks request together."""
    free: int
    total: int
    largest_free: int
    """What is free on the node that has most of it."""
    holders: tuple[Held, ...] = ()
    is_short: bool = False
    """The ranks would not fit even if they requested nothing else."""


class Capacity(Struct, frozen=True):
    """The answer about one gang. `text` is empty if the resources that are free have room for the gang."""

    never_fits: bool = False
    text: str = ""
    room: int | None = None
    """How many ranks fit now."""
    ranks: int = 0
    nodes: int = 0
    usable: int = 0
    """How many of the nodes the gang may use now."""
    resources: tuple[ResourceUse, ...] = ()


# -- never -------------------------------------------------------------------------------------------------------------


def _find_never(demand: GangDemand, nodes: Sequence[_Node]) -> str:
    """Return why no set of empty nodes could hold the gang; empty if there may be one, or if there are no nodes."""
    if not nodes:
        return ""
    reasons = (_never_fits_one(rank, nodes) for rank, _ in demand.ranks)
    return next(filter(None, reasons), "") or _never_fits_together(demand, nodes)


def _never_fits_one(rank: Rank, nodes: Sequence[_Node]) -> str:
    for name, amount in rank.requests:
        if not any(node.allocatable.get(name) for node in nodes):
            return f"{rank.name} requests {format_request(name, amount)}, and no node has this resource"
    labelled = [node for node in nodes if rank.has_labels(node.view.metadata)]
    if not labelled:
        labels = ", ".join(f"{key}={value}" for key, value in rank.selector)
        wanted = f"the node selector of {rank.name} ({labels})" if labels else f"the node affinity of {rank.name}"
        return f"no node matches {wanted}"
    allowed = [node for node in labelled if rank.may_ever_use(node.view)]
    which = "" if len(allowed) == len(nodes) else " that the gang may use"
    if not allowed:
        repelled = (taint for node in labelled for taint in rank.repelled_by(node.view))
        taints = sorted({str(taint) for taint in repelled if not taint.passes})
        return f"{rank.name} does not tolerate the taints of {pluralize(len(labelled), 'node')} ({', '.join(taints)})"
    for name, amount in rank.requests:
        largest = max(node.allocatable.get(name, 0) for node in allowed)
        if amount > largest:
            what = f"{rank.name} requests {format_request(name, amount)}"
            return f"{what}, and the largest of {pluralize(len(allowed), 'node')}{which} has {_format(name, largest)}"
    if not any(rank.room(node.allocatable, 1) for node in allowed):
        return f"{rank.name} requests {_format_requests(rank)}, and no node{which} has all of it"
    return ""


def _never_fits_together(demand: GangDemand, nodes: Sequence[_Node]) -> str:
    """Return why the ranks that must be placed together do not fit on all nodes while they are empty.

    If only some ranks of a gang with several roles must be placed together, it is not known which.
    """
    if demand.at_once < demand.size and len(demand.ranks) > 1:
        return ""
    for rank, count in demand.ranks:
        wanted = min(count, demand.at_once)
        allowed = [node for node in nodes if rank.may_ever_use(node.view)]
        room = sum(rank.room(node.allocatable, wanted) for node in allowed)
        if room < wanted:
            of_role = f" of role {rank.role}" if rank.role else ""
            ranks = f"{wanted} ranks{of_role} with {_format_requests(rank)} each"
            return f"{ranks} are placed together, and {_have(allowed)} room for {room} even when empty"
    for name in demand.resources if len(demand.ranks) > 1 else ():
        allowed = [node for node in nodes if any(rank.may_ever_use(node.view) for rank, _ in demand.ranks)]
        total = sum(node.allocatable.get(name, 0) for node in allowed)
        if demand.total(name) > total:
            wanted_text = f"{demand.at_once} ranks with {format_request(name, demand.total(name))} in all"
            return f"{wanted_text} are placed together, and {_have(allowed)} {_format(name, total)} even when empty"
    return ""


def _have(nodes: Sequence[_Node]) -> str:
    return f"{pluralize(len(nodes), 'node')} {'has' if len(nodes) == 1 else 'have'}"


# -- now ---------------------------------------------------------------------------------------------------------------


def _room(demand: GangDemand, nodes: Sequence[_Node], free: Sequence[Amounts]) -> int:
    """Return how many ranks fit now. With several roles, the larger ranks come first, which is an estimate.

    :param free: What is free on each node. The ranks are taken off.
    """
    placed = 0
    for rank, count in sorted(demand.ranks, key=lambda item: [amount for _, amount in item[0].requests], reverse=True):
        left = count
        for node, amounts in zip(nodes, free, strict=True):
            if not left:
                break
            here = min(rank.room(amounts, left), left) if rank.may_use(node.view) else 0
            for name, amount in rank.requests:
                amounts[name] -= here * amount
            left -= here
        placed += count - left
    return placed


def _resource_use(name: str, demand: GangDemand, nodes: Sequence[_Node], free: Sequence[Amounts]) -> ResourceUse:
    held: Counter[Holder] = Counter()
    for node in nodes:
        for holder, amounts in node.used.items():
            if not _is_own(holder, demand):
                held[holder] += amounts.get(name, 0)
    only = demand.of_resource(name)
    return ResourceUse(
        name,
        needed=demand.total(name),
        free=sum(amounts[name] for amounts in free),
        total=sum(node.allocatable.get(name, 0) for node in nodes),
        largest_free=max((amounts[name] for amounts in free), default=0),
        holders=tuple(Held(holder, amount) for holder, amount in held.most_common() if amount),
        is_short=_room(only, nodes, [{name: amounts[name]} for amounts in free]) < only.size,
    )


def _describe(demand: GangDemand, found: Capacity) -> str:
    """Return how much is needed and free, and who holds the rest."""
    short = [use for use in found.resources if use.is_short]
    shown = short or [use for use in found.resources if use.name != PODS]
    wanted = " and ".join(
        f"{count} x {_format_requests(rank, [use.name for use in shown])}" for rank, count in demand.ranks
    )
    where = "" if found.usable == found.nodes else f" on {found.usable} of {pluralize(found.nodes, 'node')}"
    is_scattered = any(use.free >= use.needed for use in shown) or not found.room
    free = " and ".join(_describe_free(use, with_largest=is_scattered and found.usable > 1) for use in shown)
    room = f"room for {found.room} of {found.ranks} ranks now"
    return ". ".join(filter(None, (f"Needs {wanted}; {free} free{where}, {room}", _describe_holders(shown))))


def _describe_free(use: ResourceUse, *, with_largest: bool) -> str:
    largest = f" ({_format(use.name, use.largest_free)} on one node)" if with_largest else ""
    return f"{_format(use.name, use.free)} of {_format(use.name, use.total)}{_unit(use.name)}{largest} are"


def _describe_holders(shown: Sequence[ResourceUse]) -> str:
    """Return who holds the resource that is missing most."""
    use = max(shown, key=lambda use: (use.needed - use.free) / max(use.total, 1), default=None)
    if use is None or not use.holders:
        return ""
    amounts: Counter[str] = Counter()
    gangs: dict[str, set[str]] = {}
    for held in use.holders:
        amounts[held.holder.group] += held.amount
        gangs.setdefault(held.holder.group, set()).add(f"{held.holder.namespace}/{held.holder.gang}")
    parts = [
        (amount, f"by {group}{f' ({len(gangs[group])} gangs)' if len(gangs[group]) > 1 else ''}")
        for group, amount in amounts.most_common(HOLDERS_MAX)
    ]
    if others := amounts.total() - sum(amount for amount, _ in parts):
        parts.append((others, f"by {len(amounts) - len(parts)} others"))
    first, *more = ((_format(use.name, amount), who) for amount, who in parts)
    texts = (f"{first[0]}{_unit(use.name)} are held {first[1]}", *(f"{amount} {who}" for amount, who in more))
    return ", ".join(texts)


# -- texts -------------------------------------------------------------------------------------------------------------

_MEMORY_LIKE: Final = ("memory", "ephemeral-storage", "hugepages-")
_GIBI: Final = 2**30


def _unit(name: str) -> str:
    return " CPU" if name == CPU else f" {name}"


def format_request(name: str, amount: int) -> str:
    """Return a request as a manifest has it, with the name of its resource: `1500m CPU`, `2Gi memory`."""
    if name == CPU:
        return f"{format_cpu(parse(amount) / _THOUSANDTHS)} CPU"
    return f"{format_bytes(parse(amount)) if name.startswith(_MEMORY_LIKE) else amount}{_unit(name)}"


def _format_requests(rank: Rank, names: Sequence[str] = ()) -> str:
    shown = [(name, amount) for name, amount in rank.requests if (name in names if names else name != PODS)]
    return " + ".join(format_request(name, amount) for name, amount in shown)


def _format(name: str, amount: int) -> str:
    """Return a sum: CPU and GiB with at most two decimal places, rounded down."""
    if name == CPU:
        return _decimal(amount / _THOUSANDTHS)
    return f"{_decimal(amount / _GIBI)}Gi" if name.startswith(_MEMORY_LIKE) else str(amount)


def _decimal(number: float) -> str:
    return f"{math.floor(number * 100 + 1e-6) / 100:.2f}".rstrip("0").rstrip(".")
