"""Selection: which dialects there are, and which version of the Workload API is used for the gangs of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.render.dialects.native import NativeDialect
from airflow_provider_gangjobs.gang.render.dialects.podgroups import PodGroupDialect
from airflow_provider_gangjobs.gang.render.dialects.v1alpha1 import V1Alpha1Dialect
from airflow_provider_gangjobs.gang.render.dialects.v1alpha2 import V1Alpha2Dialect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_gangjobs.gang.render.dialects.base import Dialect

DISCOVERED_DIALECTS: Final[tuple[Dialect, ...]] = (
    PodGroupDialect("v1beta1"),
    PodGroupDialect("v1alpha3"),
    V1Alpha2Dialect(),
    V1Alpha1Dialect(),
)
"""Dialects that discovery may select, best first."""

OPT_IN_DIALECTS: Final[tuple[Dialect, ...]] = (NativeDialect(),)
"""Dialects that are selected only by name."""

DIALECT_NAMES: Final = tuple(dialect.name for dialect in (*DISCOVERED_DIALECTS, *OPT_IN_DIALECTS))


def select_dialect(served: Mapping[str, Collection[str]], name: str | None = None) -> Dialect | None:
    """Return the best dialect that a cluster serves, or `None`.

    :param served: Version of scheduling.k8s.io -> plural names of the resources that the cluster serves.
    :param name: Consider only the dialect with this name.
    """
    candidates = (
        DISCOVERED_DIALECTS if name is None else [d for d in (*DISCOVERED_DIALECTS, *OPT_IN_DIALECTS) if d.name == name]
    )
    return next(
        (dialect for dialect in candidates if dialect.required_resources <= set(served.get(dialect.version, ()))), None
    )


def find_dialect(name: str) -> Dialect | None:
    """Return the dialect with this name, or `None`. The function does not consider what a cluster serves."""
    return next((dialect for dialect in (*DISCOVERED_DIALECTS, *OPT_IN_DIALECTS) if dialect.name == name), None)


__all__ = ["DIALECT_NAMES", "DISCOVERED_DIALECTS", "OPT_IN_DIALECTS", "find_dialect", "select_dialect"]
