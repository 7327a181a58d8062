"""A node as the scheduler sees it: its allocatable resources, and the resources in use."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.apimachinery.quantity import ResourceList

Obj = dict[str, Any]

PODS = "pods"
"""Each pod uses one unit of this resource, and a node offers a fixed number."""

_PODS_PER_NODE = Decimal(110)
_ONE = Decimal(1)


@dataclass
class NodeState:
    """The free resources of one node. `reserve` and `release` update them; the object is not changed."""

    obj: Obj
    allocatable: ResourceList
    free: ResourceList = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    def copy(self) -> NodeState:
        return NodeState(self.obj, self.allocatable, dict(self.free))

    def reserve(self, request: Mapping[str, Decimal]) -> None:
        for name, amount in request.items():
            self.free[name] = self.free.get(name, Decimal(0)) - amount

    def release(self, request: Mapping[str, Decimal]) -> None:
        for name, amount in request.items():
            self.free[name] = self.free.get(name, Decimal(0)) + amount


def node_state(obj: Obj) -> NodeState:
    """Build the state of an empty node from its allocatable resources, or from its capacity if there are none."""
    status = obj.get("status") or {}
    allocatable = quantity.parse_list(status.get("allocatable") or status.get("capacity"))
    allocatable.setdefault(PODS, _PODS_PER_NODE)
    return NodeState(obj, allocatable, dict(allocatable))


def request_of(pod: Mapping[str, Any]) -> ResourceList:
    """Return the resources that the pod uses on a node, including one unit of `pods`."""
    return {**quantity.requests_of(pod["spec"]), PODS: _ONE}
