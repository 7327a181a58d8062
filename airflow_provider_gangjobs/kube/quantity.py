"""Kubernetes quantities ("500m", "2Gi", "1e3") as exact numbers, and sums of resource requests.

Everything is a `Decimal`: a scheduler that adds floats over-commits a node by rounding. The grammar is
that of apimachinery's `resource.Quantity`: a signed number with a binary suffix, a decimal suffix or an exponent.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "ResourceList",
    "add",
    "fits",
    "format_bytes",
    "format_cpu",
    "largest",
    "parse",
    "parse_list",
    "requests_of",
    "subtract",
]

ResourceList = dict[str, Decimal]
"""Amount by resource name: cpu in cores, memory in bytes, others counted."""

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$", re.ASCII)
_BINARY_STEPS = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_FACTORS: dict[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    **{suffix: Decimal(1024**power) for power, suffix in enumerate(_BINARY_STEPS, start=1)},
}
_EXPONENT_DIGITS_MAX = 4
"""`1e999999999` is one short string and a number that fills the memory."""


def parse(quantity: str | float | Decimal) -> Decimal:
    """The exact value of a quantity.

    Raises:
        ValueError: not a quantity; the message quotes it.
    """
    if isinstance(quantity, bool):
        raise ValueError(f"{quantity!r} is not a quantity: write a number such as 2, '500m' or '4Gi'")
    if isinstance(quantity, Decimal):
        return quantity
    match = _QUANTITY.match(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity: write a number such as 2, '500m' or '4Gi'")
    number, exponent, suffix = match.groups()
    if exponent is not None:
        if len(exponent) > _EXPONENT_DIGITS_MAX:
            raise ValueError(f"{quantity!r} is not a quantity: its exponent is out of range")
        return Decimal(number + exponent)
    return Decimal(number) * _FACTORS[suffix] if suffix else Decimal(number)


def format_cpu(cores: Decimal) -> str:
    """Cores as Kubernetes writes them: whole ones bare, parts in millicores, rounded up."""
    if cores == cores.to_integral_value():
        return str(int(cores))
    return f"{_ceil(cores * 1000)}m"


def format_bytes(amount: Decimal) -> str:
    """Bytes with the largest binary suffix that divides them, rounded up to whole bytes."""
    count = _ceil(amount)
    for power in range(len(_BINARY_STEPS), 0, -1):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{_BINARY_STEPS[power - 1]}"
    return str(count)


def parse_list(resources: Mapping[str, Any] | None) -> ResourceList:
    """A Kubernetes ResourceList with its values parsed. Raises ValueError, naming the resource."""
    parsed: ResourceList = {}
    for name, quantity in (resources or {}).items():
        try:
            parsed[name] = parse(quantity)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
    return parsed


def add(*lists: Mapping[str, Decimal]) -> ResourceList:
    """The sum of resource lists, name by name."""
    total: ResourceList = {}
    for resources in lists:
        for name, amount in resources.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total


def subtract(left: Mapping[str, Decimal], right: Mapping[str, Decimal]) -> ResourceList:
    """`left - right`, name by name; what only `right` names becomes negative."""
    return add(left, {name: -amount for name, amount in right.items()})


def largest(*lists: Mapping[str, Decimal]) -> ResourceList:
    """The maximum of resource lists, name by name."""
    result: ResourceList = {}
    for resources in lists:
        for name, amount in resources.items():
            result[name] = max(result.get(name, amount), amount)
    return result


def fits(request: Mapping[str, Decimal], free: Mapping[str, Decimal]) -> tuple[str, ...]:
    """Names of the resources of which `free` has too little, in order of name; empty if the request fits.

    A request of zero always fits, also on a node that has never heard of the resource.
    """
    return tuple(sorted(name for name, amount in request.items() if amount > 0 and amount > free.get(name, Decimal(0))))


def requests_of(pod_spec: Mapping[str, Any]) -> ResourceList:
    """What a pod asks of a node, as the scheduler counts it.

    Containers and sidecars (init containers with restartPolicy Always) add up; each other init container needs
    room beside the sidecars started before it; pod-level requests win where given; overhead comes on top.
    A resource with a limit and no request counts its limit. Raises ValueError.
    """
    running = add(*(_container_requests(container) for container in pod_spec.get("containers") or ()))
    start_peak, sidecars = _init_requests(pod_spec.get("initContainers") or ())
    needed = largest(add(running, sidecars), start_peak)
    needed.update(_container_requests(pod_spec))
    return add(needed, parse_list(pod_spec.get("overhead")))


def _init_requests(containers: Iterable[Mapping[str, Any]]) -> tuple[ResourceList, ResourceList]:
    peak: ResourceList = {}
    sidecars: ResourceList = {}
    for container in containers:
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = add(sidecars, own)
            peak = largest(peak, sidecars)
        else:
            peak = largest(peak, add(own, sidecars))
    return peak, sidecars


def _container_requests(container: Mapping[str, Any]) -> ResourceList:
    resources = container.get("resources") or {}
    return parse_list({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _ceil(value: Decimal) -> int:
    whole = int(value)
    return whole + 1 if value > whole else whole
