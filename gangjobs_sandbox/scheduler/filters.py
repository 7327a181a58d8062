"""Finds out why a node does not suit a pod. The texts are those of the filter plugins of kube-scheduler. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.apimachinery.selectors import Operator, Requirement
from gangjobs_sandbox.controllers.meta import NO_SCHEDULE, UNSCHEDULABLE, first_untolerated, tolerates
from gangjobs_sandbox.scheduler.nodes import PODS, NodeState, Obj

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal


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
