"""Node selectors and required node affinity. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery.selectors import Operator, Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping


def matches(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
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
