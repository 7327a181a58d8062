"""Resources: quantities are valid, limits are not below requests, and devices are whole numbers."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.kube import names, quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_gangjobs.gang.validation.parsed_spec import ParsedSpec

_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGEPAGES: Final = "hugepages-"
_NATIVE_DOMAIN: Final = "kubernetes.io/"
_REMEDIES: Final = {"gpu": "Name the device, e.g. nvidia.com/gpu", "mem": "Write memory"}

Amounts = dict[str, Decimal]


def check_resources(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check the requests and limits of every container."""
    for path, container in parsed.containers():
        resources = container.get("resources", {})
        named = path.endswith(".containers[0]") and parsed.spec.resources is not None
        yield from _container("resources" if named else f"{path}.resources", resources)


def _container(path: str, resources: Mapping[str, Any]) -> Iterator[Problem]:
    amounts: dict[str, Amounts] = {"requests": {}, "limits": {}}
    found: dict[str, Problem] = {}
    for part, read in amounts.items():
        for name, value in resources.get(part, {}).items():
            problem = _problem(path, part, name, value)
            if problem is None:
                read[name] = quantity.parse(value)
            else:
                found.setdefault(name, problem)
    yield from found.values()
    yield from _between(path, amounts["requests"], amounts["limits"])


def _problem(path: str, part: str, name: str, value: Any) -> Problem | None:
    at = f"{path}.{part}.{name}"
    if not _is_known(name):
        wrong = names.problem_with_qualified_name(name) if "/" in name else f"{name!r} is not a resource"
        return Problem(at, wrong or "", _REMEDIES.get(name, "Use cpu, memory, ephemeral-storage or <domain>/<name>"))
    try:
        amount = quantity.parse(value)
    except (ValueError, TypeError):
        return Problem(at, f"{value!r} is not a quantity", "Write a number such as 2, 500m or 4Gi")
    if amount < 0:
        return Problem(at, f"{value!r} is negative", "Give 0 or more")
    if is_extended(name) and amount != amount.to_integral_value():
        return Problem(at, f"{value!r} is not whole, and a device cannot be divided", "Give a whole number")
    return None


def _between(path: str, requests: Amounts, limits: Amounts) -> Iterator[Problem]:
    for name, requested in requests.items():
        limit = limits.get(name)
        if limit is None and is_extended(name):
            yield Problem(f"{path}.limits.{name}", "is missing, and a device needs it", f"Set it to {requested}")
        elif limit is not None and is_extended(name) and requested != limit:
            yield Problem(f"{path}.requests.{name}", f"{requested} is not the limit {limit}", "Make them equal")
        elif limit is not None and requested > limit:
            yield Problem(f"{path}.requests.{name}", f"{requested} is above the limit {limit}", "Raise the limit")


def is_extended(name: str) -> bool:
    """Return whether a resource is an extended resource, such as a device, which is never divided or overcommitted."""
    return "/" in name and not name.startswith(_NATIVE_DOMAIN)


def _is_known(name: str) -> bool:
    if "/" in name:
        return names.problem_with_qualified_name(name) is None
    return name in _STANDARD or name.startswith(_HUGEPAGES)
