"""Parses Kubernetes quantities ("500m", "2Gi", "1e3") as exact numbers, and adds resource requests.

All amounts are `Decimal`, because rounding errors of floats could overcommit a node. The grammar is that of
apimachinery's `resource.Quantity`: a signed number with a binary suffix, a decimal suffix, or an exponent.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "ResourceList",
    "add",
    "canonical",
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
"""Amount by resource name: cpu in cores, memory in bytes, and other resources as counts."""

_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
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
_DECIMAL_SUFFIXES = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}
_EXPONENT = re.compile(r"[eE][+-]?\d+$")
_EXPONENT_CHARACTERS_MAX = 4
"""With the `e` and the sign. `1e999999999` is a short string, but its number would fill the memory."""


def parse(quantity: str | float | Decimal) -> Decimal:
    """Return the exact value of a quantity.

    Raises:
        ValueError: the text is not a quantity. The message quotes the text.
    """
    if isinstance(quantity, bool):
        raise ValueError(f"{quantity!r} is not a quantity: write a number such as 2, '500m' or '4Gi'")
    if isinstance(quantity, Decimal):
        return quantity
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity: write a number such as 2, '500m' or '4Gi'")
    number, exponent, suffix = match.groups()
    if exponent is not None:
        if len(exponent) > _EXPONENT_CHARACTERS_MAX:
            raise ValueError(f"{quantity!r} is not a quantity: its exponent is out of range")
        return Decimal(number + exponent)
    return Decimal(number) * _FACTORS[suffix] if suffix else Decimal(number)


def format_cpu(cores: Decimal) -> str:
    """Return cores as Kubernetes formats them: whole cores as a number, and fractions in millicores, rounded up."""
    if cores == cores.to_integral_value():
        return str(int(cores))
    return f"{math.ceil(cores * 1000)}m"


def format_bytes(amount: Decimal) -> str:
    """Return bytes, rounded up to whole bytes, with the largest binary suffix that divides them."""
    count = math.ceil(amount)
    for power in range(len(_BINARY_STEPS), 0, -1):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{_BINARY_STEPS[power - 1]}"
    return str(count)


def canonical(value: str | float) -> str:
    """Return the canonical text of a quantity: the API server stores `1024Mi` as `1Gi` and `1.5` as `1500m`.

    The value and the family of its suffix stay the same. The suffix is the largest that leaves a whole number, as in
    `Quantity.CanonicalizeBytes`.

    Raises:
        ValueError: the value is not a quantity.
    """
    number = parse(value)
    text = str(value)
    if text.endswith("i") and abs(number) >= 1024:
        return format_bytes(number)
    return _canonical_decimal(number, exponent=_EXPONENT.search(text) is not None and isinstance(value, str))


def _canonical_decimal(number: Decimal, *, exponent: bool) -> str:
    if number == 0:
        return "0"
    # The smallest unit is one billionth. Smaller amounts are rounded up.
    whole, power = int((number * 10**9).to_integral_value(ROUND_CEILING)), -3
    while whole % 1000 == 0 and power < max(_DECIMAL_SUFFIXES):
        whole, power = whole // 1000, power + 1
    if exponent:
        return f"{whole}e{3 * power}" if power else str(whole)
    return f"{whole}{_DECIMAL_SUFFIXES[power]}"


def parse_list(resources: Mapping[str, Any] | None) -> ResourceList:
    """Parse the values of a Kubernetes ResourceList.

    Raises:
        ValueError: a value is not a quantity. The message names the resource.
    """
    parsed: ResourceList = {}
    for name, quantity in (resources or {}).items():
        try:
            parsed[name] = parse(quantity)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
    return parsed


def add(*lists: Mapping[str, Decimal]) -> ResourceList:
    """Return the sum of resource lists, name by name."""
    total: ResourceList = {}
    for resources in lists:
        for name, amount in resources.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total


def subtract(left: Mapping[str, Decimal], right: Mapping[str, Decimal]) -> ResourceList:
    """Return `left - right`, name by name. A resource that only `right` has becomes negative."""
    return add(left, {name: -amount for name, amount in right.items()})


def largest(*lists: Mapping[str, Decimal]) -> ResourceList:
    """Return the maximum of resource lists, name by name."""
    result: ResourceList = {}
    for resources in lists:
        for name, amount in resources.items():
            result[name] = max(result.get(name, amount), amount)
    return result


def fits(request: Mapping[str, Decimal], free: Mapping[str, Decimal]) -> tuple[str, ...]:
    """Return the sorted names of the resources that `free` lacks. The result is empty if the request fits.

    A request of zero always fits, even on a node that does not have the resource.
    """
    return tuple(sorted(name for name, amount in request.items() if amount > 0 and amount > free.get(name, Decimal(0))))


def requests_of(pod_spec: Mapping[str, Any]) -> ResourceList:
    """Return the resource requests of a pod, as the scheduler calculates them.

    The requests of containers and sidecars (init containers with restartPolicy Always) are added. Each other init
    container runs next to the sidecars that were started before it. Pod-level requests take precedence. The overhead is
    added to the result. A resource with a limit and without a request counts with its limit.

    Raises:
        ValueError: a value is not a quantity.
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
