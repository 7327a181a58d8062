"""The canonical form of a quantity: the API server stores `1024Mi` as `1Gi` and `1.5` as `1500m`.

The value and the family of its suffix stay the same. The suffix is the largest that leaves a whole number. The rules
are those of `Quantity.CanonicalizeBytes` of `k8s.io/apimachinery/pkg/api/resource`.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from airflow_provider_gangjobs.kube import quantity

__all__ = ["canonical"]

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}
_EXPONENT = re.compile(r"[eE][+-]?\d+$")


def canonical(value: str | float) -> str:
    """Return the canonical text of a quantity.

    Raises:
        ValueError: the value is not a quantity.
    """
    number = quantity.parse(value)
    text = str(value)
    if text.endswith("i") and abs(number) >= 1024:
        return _binary(number)
    return _decimal(number, exponent=_EXPONENT.search(text) is not None and isinstance(value, str))


def _binary(number: Decimal) -> str:
    whole, power = int(number.to_integral_value(ROUND_CEILING)), 0
    while whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_BINARY[power]}"


def _decimal(number: Decimal, *, exponent: bool) -> str:
    if number == 0:
        return "0"
    # The smallest unit is one billionth. Smaller amounts are rounded up.
    whole, power = int((number * 10**9).to_integral_value(ROUND_CEILING)), -3
    while whole % 1000 == 0 and power < max(_DECIMAL):
        whole, power = whole // 1000, power + 1
    if exponent:
        return f"{whole}e{3 * power}" if power else str(whole)
    return f"{whole}{_DECIMAL[power]}"
