"""Parses Kubernetes quantities ("500m", "2Gi", "1e3") as exact numbers, and adds the resource requests of a pod.

The grammar is that of apimachinery's `resource.Quantity`: a signed number with a binary suffix, a decimal suffix, or an
exponent. All amounts are `Decimal`, so that nothing is rounded.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ResourceList = dict[str, Decimal]
"""Amount by resource name: cpu in cores, memory in bytes, and other resources as counts."""

_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_BINARY_STEPS = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_STEPS = ("n", "u", "m", None, "k", "M", "G", "T", "P", "E")
_FACTORS: dict[str | None, Decimal] = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(_DECIMAL_STEPS, start=-3)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(_BINARY_STEPS, start=1)},
}
_EXPONENT_CHARACTERS_MAX = 4
"""With the `e` and the sign. `1e999999999` is a short string, but its number would fill the memory."""
_CHARACTERS_MAX = 100
"""Kubernetes has no limit. A longer quantity is a mistake, and Python computes slowly with so many digits."""


def parse(quantity: str | float | Decimal) -> Decimal:
    """Return the exact value of a quantity.

    Raises:
        ValueError: the text is not a quantity. The message quotes the text.
    """
    if isinstance(quantity, Decimal):
        return quantity
    match = None if isinstance(quantity, bool) else _QUANTITY.fullmatch(str(quantity)[: _CHARACTERS_MAX + 1])
    if match is None or match.end() > _CHARACTERS_MAX:
        raise ValueError(f"{quantity!r:.80} is not a quantity: write a number such as 2, '500m' or '4Gi'")
    number, exponent, suffix = match.groups()
    if exponent is not None:
        if len(exponent) > _EXPONENT_CHARACTERS_MAX:
            raise ValueError(f"{quantity!r} is not a quantity: its exponent is out of range")
        return Decimal(number + exponent)
    return Decimal(number) * _FACTORS[suffix]


def format_cpu(cores: Decimal) -> str:
    """Return cores as Kubernetes formats them: whole cores as a number, and fractions in millicores, rounded up."""
    if cores == cores.to_integral_value():
        return str(int(cores))
    return f"{math.ceil(cores * 1000)}m"


def format_bytes(amount: Decimal) -> str:
    """Return whole bytes, rounded up, with the largest binary suffix that divides them."""
    count = math.ceil(amount)
    for power in range(len(_BINARY_STEPS), 0, -1):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{_BINARY_STEPS[power - 1]}"
    return str(count)


def is_of_bytes(resource: str) -> bool:
    """Return whether amounts of a resource are bytes."""
    return resource.startswith(("memory", "ephemeral-storage", "hugepages-"))


def format_amount(resource: str, amount: Decimal) -> str:
    """Return an amount of a resource as a Kubernetes quantity."""
    return format_bytes(amount) if is_of_bytes(resource) else format_cpu(amount)


def format_amounts(resources: ResourceList) -> dict[str, str]:
    return {name: format_amount(name, amount) for name, amount in resources.items()}


def total_of(parts: Iterable[tuple[ResourceList, int]]) -> ResourceList:
    """Return what pods request together.

    :param parts: The requests of equal pods, and their number.
    """
    return _add(*({name: amount * count for name, amount in resources.items()} for resources, count in parts))


def requests_of(pod_spec: Mapping[str, Any]) -> ResourceList:
    """Return the resource requests of a pod, as the scheduler calculates them.

    Containers and sidecars (init containers with restartPolicy Always) are added. Each other init container runs next
    to the sidecars before it. Pod-level requests take precedence, and the overhead is added. A limit counts where a
    request is missing.

    Raises:
        ValueError: a value is not a quantity. The message names the resource.
    """
    running = _add(*(_container_requests(container) for container in pod_spec.get("containers") or ()))
    start_peak, sidecars = _init_requests(pod_spec.get("initContainers") or ())
    needed = _largest(_add(running, sidecars), start_peak)
    needed.update(_container_requests(pod_spec))
    return _add(needed, _parse_list(pod_spec.get("overhead")))


def _init_requests(containers: Iterable[Mapping[str, Any]]) -> tuple[ResourceList, ResourceList]:
    peak: ResourceList = {}
    sidecars: ResourceList = {}
    for container in containers:
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _add(sidecars, own)
            peak = _largest(peak, sidecars)
        else:
            peak = _largest(peak, _add(own, sidecars))
    return peak, sidecars


def _add(*lists: Mapping[str, Decimal]) -> ResourceList:
    total: ResourceList = {}
    for resources in lists:
        for name, amount in resources.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total


def _largest(*lists: Mapping[str, Decimal]) -> ResourceList:
    result: ResourceList = {}
    for resources in lists:
        for name, amount in resources.items():
            result[name] = max(result.get(name, amount), amount)
    return result


def _container_requests(container: Mapping[str, Any]) -> ResourceList:
    resources = container.get("resources") or {}
    return _parse_list({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _parse_list(resources: Mapping[str, Any] | None) -> ResourceList:
    parsed: ResourceList = {}
    for name, quantity in (resources or {}).items():
        try:
            parsed[name] = parse(quantity)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
    return parsed
