"""Dialects: the forms in which clusters are told of a gang, best first.

The API changed in every release, so discovery picks the form. A new one is a new file and a new row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.render.dialects.base import TEMPLATE_NAME, Dialect, SchedulingGroup
from airflow_provider_gangjobs.gang.render.dialects.native import NativeDialect
from airflow_provider_gangjobs.gang.render.dialects.podgroups import PodGroupDialect
from airflow_provider_gangjobs.gang.render.dialects.v1alpha1 import V1Alpha1Dialect
from airflow_provider_gangjobs.gang.render.dialects.v1alpha2 import V1Alpha2Dialect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

DISCOVERED_DIALECTS: Final[tuple[Dialect, ...]] = (
    PodGroupDialect("v1beta1"),
    PodGroupDialect("v1alpha3"),
    V1Alpha2Dialect(),
    V1Alpha1Dialect(),
)
"""Chosen by what the cluster serves, the first that fits."""

OPT_IN_DIALECTS: Final[tuple[Dialect, ...]] = (NativeDialect(),)
"""Chosen only by name."""

DIALECT_NAMES: Final = tuple(dialect.name for dialect in (*DISCOVERED_DIALECTS, *OPT_IN_DIALECTS))


def select_dialect(served: Mapping[str, Collection[str]], name: str | None = None) -> Dialect | None:
    """The best dialect, or the one called `name`, if the cluster serves what it needs.

    `served` is version of scheduling.k8s.io -> plural names of its resources.
    """
    offered = (
        DISCOVERED_DIALECTS if name is None else [d for d in (*DISCOVERED_DIALECTS, *OPT_IN_DIALECTS) if d.name == name]
    )
    return next(
        (dialect for dialect in offered if dialect.required_resources <= set(served.get(dialect.version, ()))), None
    )


def find_dialect(name: str) -> Dialect | None:
    """The dialect called so, whether or not a cluster serves it."""
    return next((dialect for dialect in (*DISCOVERED_DIALECTS, *OPT_IN_DIALECTS) if dialect.name == name), None)


__all__ = [
    "DIALECT_NAMES",
    "DISCOVERED_DIALECTS",
    "OPT_IN_DIALECTS",
    "TEMPLATE_NAME",
    "Dialect",
    "NativeDialect",
    "SchedulingGroup",
    "find_dialect",
    "select_dialect",
]
