"""Nodes and pods as a scheduler reads them: what a node has, what a pod requests, and which nodes a pod may use.

Of node selectors, required node affinity, taints, and tolerations, the rules are those of Kubernetes. An operator that
is not known here counts as met, so that a node is never left out by mistake.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.kube import well_known as keys
from airflow_provider_gangjobs.kube.quantity import parse, requests_of

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class NodeMeta(_View, frozen=True):
    name: str = ""
    labels: dict[str, str] = {}


class NodeSpec(_View, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(_View, frozen=True):
    allocatable: dict[str, str] = {}


class NodeView(_View, frozen=True):
    metadata: NodeMeta = NodeMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Toleration(_View, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether a pod with this toleration may be placed in spite of the taint."""
        is_about = self.effect in {"", taint.effect} and self.key in {"", taint.key}
        return is_about and (self.operator != "Equal" or self.value == taint.value)


class Requirement(_View, frozen=True):
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


class SelectorTerm(_View, frozen=True):
    """One of the alternatives of a required node affinity. Requirements on fields of the node are not read."""

    match_expressions: tuple[Requirement, ...] = ()


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
        """Return the requests of the pod, which is also one of the `pods` that a node may have.

        Raises:
            ValueError: a request is not a quantity.
        """
        return {**to_amounts(requests_of(msgspec.to_builtins(self))), PODS: 1}

    @property
    def terms(self) -> tuple[SelectorTerm, ...] | None:
        """The alternatives of the required node affinity; `None` if there is none."""
        required = self.affinity and self.affinity.node_affinity
        selector = required and required.required_during_scheduling_ignored_during_execution
        return selector.node_selector_terms if selector else None


class PodUseStatus(_View, frozen=True):
    phase: str = "Pending"


class PodUse(_View, frozen=True):
    """A pod as the server has it, as far as it uses a node."""

    metadata: PodUseMeta = PodUseMeta()
    spec: PodUseSpec = PodUseSpec()
    status: PodUseStatus = PodUseStatus()


class NodeRules(Struct, frozen=True):
    """Which nodes a pod may use. Equal rules are equal and have the same hash."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[SelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @classmethod
    def of(cls, spec: PodUseSpec) -> NodeRules:
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
