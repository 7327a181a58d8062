"""Admits pods to a node: reserves the resources that they request, and assigns GPUs by index.

The scheduler has already counted the requests. The node counts them again, because two schedulers, or a user who binds
a pod by hand, can overcommit the node. The node releases the resources of an ended pod before it reports the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.node.config import GPU

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Admission", "Rejection"]


@dataclass(frozen=True)
class Rejection:
    """The reason why the node does not run a pod. `reason` and `message` have the wording of the kubelet."""

    reason: str
    message: str


class Admission:
    """The resources of one node and the pods that use them."""

    def __init__(self, allocatable: Mapping[str, Decimal]) -> None:
        self._allocatable = dict(allocatable)
        self._requests: dict[str, quantity.ResourceList] = {}
        self._devices: dict[str, list[int]] = {}

    def admit(self, uid: str, spec: Mapping[str, Any]) -> Rejection | None:
        """Reserve the resources of a pod, or return why they are missing. An admitted pod keeps its reservation."""
        if uid in self._requests:
            return None
        request = quantity.add(quantity.requests_of(spec), {"pods": Decimal(1)})
        used = quantity.add(*self._requests.values())
        if lacking := quantity.fits(request, quantity.subtract(self._allocatable, used)):
            return self._rejection(lacking[0], request, used)
        self._requests[uid] = request
        taken = {index for indexes in self._devices.values() for index in indexes}
        free = [index for index in range(int(self._allocatable.get(GPU, 0))) if index not in taken]
        self._devices[uid] = free[: int(request.get(GPU, 0))]
        return None

    def release(self, uid: str) -> None:
        self._requests.pop(uid, None)
        self._devices.pop(uid, None)

    def used(self) -> quantity.ResourceList:
        """Return the sum of the requests of all admitted pods."""
        return quantity.add(*self._requests.values())

    def device_env(self, uid: str, spec: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """Return the device variables by container name. The result is empty on a node without devices."""
        if not self._allocatable.get(GPU):
            return {}
        left = list(self._devices.get(uid, ()))
        env = {item["name"]: _device_variables(_devices_of(item), left) for item in spec.get("containers") or ()}
        # Init containers end before the other containers start, so they may use the same devices.
        every = list(self._devices.get(uid, ()))
        inits = spec.get("initContainers") or ()
        return env | {item["name"]: _device_variables(_devices_of(item), list(every)) for item in inits}

    def _rejection(self, name: str, request: quantity.ResourceList, used: quantity.ResourceList) -> Rejection:
        def units(amounts: Mapping[str, Decimal]) -> int:
            amount = amounts.get(name, Decimal(0))
            return int(amount * 1000) if name == "cpu" else int(amount)

        numbers = f"requested: {units(request)}, used: {units(used)}, capacity: {units(self._allocatable)}"
        message = f"Pod was rejected: Node didn't have enough resource: {name}, {numbers}"
        return Rejection(f"OutOf{name}", message)


def _devices_of(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    amounts = quantity.parse_list({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
    return int(amounts.get(GPU, 0))


def _device_variables(count: int, left: list[int]) -> dict[str, str]:
    """Take `count` of the devices that are left. If there are none, the variables hide all devices from the program."""
    taken = [left.pop(0) for _ in range(min(count, len(left)))]
    if not taken:
        return {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
    indexes = ",".join(map(str, taken))
    return {"NVIDIA_VISIBLE_DEVICES": indexes, "CUDA_VISIBLE_DEVICES": indexes}
