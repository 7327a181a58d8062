"""Which dialects there are, and which version of the Workload API is used for the gangs of a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.schedulers.native.job_field import NativeDialect
from airflow_provider_gangjobs.gang.schedulers.native.podgroups import PodGroupDialect
from airflow_provider_gangjobs.gang.schedulers.native.v1alpha1 import V1Alpha1Dialect
from airflow_provider_gangjobs.gang.schedulers.native.v1alpha2 import V1Alpha2Dialect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_gangjobs.gang.schedulers.base import Dialect

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

_VERSION: Final = re.compile(r"v\d+((alpha|beta)\d+)?")


def select_dialect(
    served: Mapping[str, Collection[str]], name: str | None = None, *, proven: Collection[str] = ()
) -> Dialect | None:
    """Return the best dialect that a cluster serves, or `None`.

    :param served: Version of scheduling.k8s.io -> plural names of the resources that the cluster serves.
    :param name: Consider only the dialect with this name.
    :param proven: Newer versions for which a dry run has shown that the server keeps the link and the group.
    """
    newer = tuple(PodGroupDialect(version) for version in proven)
    candidates = [
        dialect
        for dialect in (*DISCOVERED_DIALECTS, *newer, *(OPT_IN_DIALECTS if name else ()))
        if name in (None, dialect.name)
    ]
    return next(
        (dialect for dialect in candidates if dialect.required_resources <= set(served.get(dialect.version, ()))), None
    )


def wanted_versions(name: str | None = None) -> dict[str, frozenset[str]]:
    """Return the versions of scheduling.k8s.io that can be used, the best first, each with its required resources.

    :param name: Consider only the dialect with this name.
    """
    candidates = (*DISCOVERED_DIALECTS, *(OPT_IN_DIALECTS if name else ()))
    return {dialect.version: dialect.required_resources for dialect in candidates if name in (None, dialect.name)}


def newer_dialects(served: Mapping[str, Collection[str]]) -> list[PodGroupDialect]:
    """Return the dialects of served versions that this release of the provider does not know.

    A newer version is expected to have the fields of the newest known one. A dry run must show this before a gang is
    submitted in such a dialect.
    """
    known = {dialect.version for dialect in DISCOVERED_DIALECTS}
    newer = (PodGroupDialect(version) for version in served if version not in known and _VERSION.fullmatch(version))
    return [dialect for dialect in newer if dialect.required_resources <= set(served[dialect.version])]


def find_dialect(name: str) -> Dialect | None:
    """Return the dialect with this name, or `None`. The function does not consider what a cluster serves.

    The name of a version that is not known is the name of a newer dialect, as an earlier submission chose it.
    """
    known = (dialect for dialect in (*DISCOVERED_DIALECTS, *OPT_IN_DIALECTS) if dialect.name == name)
    return next(known, PodGroupDialect(name) if _VERSION.fullmatch(name) else None)


__all__ = [
    "DIALECT_NAMES",
    "DISCOVERED_DIALECTS",
    "OPT_IN_DIALECTS",
    "find_dialect",
    "newer_dialects",
    "select_dialect",
    "wanted_versions",
]
