"""The downward API: resolves `fieldRef` and `resourceFieldRef` for a container.

The functions raise ValueError with a message for the container's waiting state.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["PodFacts", "field_value", "resource_value"]


@dataclass(frozen=True)
class PodFacts:
    """A pod, and the values that the node knows before the API server does."""

    pod: Mapping[str, Any]
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, Decimal] = field(default_factory=dict)

    @property
    def metadata(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.pod["metadata"]
        return found

    @property
    def spec(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.pod["spec"]
        return found

    @property
    def namespace(self) -> str:
        return str(self.metadata["namespace"])


_FIELDS: dict[str, Callable[[PodFacts], str]] = {
    "metadata.name": lambda facts: facts.metadata["name"],
    "metadata.namespace": lambda facts: facts.namespace,
    "metadata.uid": lambda facts: facts.metadata["uid"],
    "metadata.labels": lambda facts: _lines(facts.metadata.get("labels")),
    "metadata.annotations": lambda facts: _lines(facts.metadata.get("annotations")),
    "spec.nodeName": lambda facts: facts.spec.get("nodeName", ""),
    "spec.serviceAccountName": lambda facts: facts.spec.get("serviceAccountName") or "default",
    "status.podIP": lambda facts: facts.pod_ip,
    "status.podIPs": lambda facts: facts.pod_ip,
    "status.hostIP": lambda facts: facts.host_ip,
    "status.hostIPs": lambda facts: facts.host_ip,
}
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


def field_value(facts: PodFacts, path: str) -> str:
    """Return the text at a `fieldRef` path. A missing label or annotation gives an empty text."""
    subscript = _SUBSCRIPT.match(path)
    if subscript:
        return str((facts.metadata.get(subscript[1]) or {}).get(subscript[2], ""))
    if path not in _FIELDS:
        raise ValueError(f"unsupported fieldPath: {path}")
    return _FIELDS[path](facts)


def resource_value(facts: PodFacts, reference: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Return the number at a `resourceFieldRef`, in units of its divisor, rounded up.

    A limit that is not set defaults to the allocatable amount of the node. A request that is not set defaults to the
    limit, or else to zero.
    """
    named = reference.get("containerName") or container.get("name")
    owner = next((item for item in _containers(facts.spec) if item["name"] == named), container)
    kind, _, name = str(reference["resource"]).partition(".")
    if kind not in ("limits", "requests") or not name:
        raise ValueError(f"unsupported container resource: {reference['resource']}")
    divisor = quantity.parse(reference.get("divisor") or "1") or Decimal(1)
    amount = _amount(owner.get("resources") or {}, kind, name, facts.allocatable)
    return str(int((amount / divisor).to_integral_value(ROUND_CEILING)))


def _amount(resources: Mapping[str, Any], kind: str, name: str, allocatable: Mapping[str, Decimal]) -> Decimal:
    limits, requests = quantity.parse_list(resources.get("limits")), quantity.parse_list(resources.get("requests"))
    if kind == "limits":
        return limits.get(name, allocatable.get(name, Decimal(0)))
    return requests.get(name, limits.get(name, Decimal(0)))


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def _lines(pairs: Mapping[str, str] | None) -> str:
    """Format a map as the kubelet does: sorted, with one `key="value"` on each line."""
    return "\n".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in sorted((pairs or {}).items()))
