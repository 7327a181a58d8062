"""Dialects: the forms in which clusters are told of a gang, best first.

The API changed in every release, so discovery picks the form. A new one is a new file and a new row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.render.dialects.base import TEMPLATE_NAME, Dialect, Group
from airflow_provider_gangjobs.gang.render.dialects.native import Native
from airflow_provider_gangjobs.gang.render.dialects.podgroups import PodGroups
from airflow_provider_gangjobs.gang.render.dialects.v1alpha1 import EmbeddedGroups
from airflow_provider_gangjobs.gang.render.dialects.v1alpha2 import NamedTemplates

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ON_DISCOVERY: Final[tuple[Dialect, ...]] = (
    PodGroups("v1beta1"),
    PodGroups("v1alpha3"),
    NamedTemplates(),
    EmbeddedGroups(),
)
"""Chosen by what the cluster serves, the first that fits."""

ON_REQUEST: Final[tuple[Dialect, ...]] = (Native(),)
"""Chosen only by name."""

NAMES: Final = tuple(dialect.name for dialect in (*ON_DISCOVERY, *ON_REQUEST))


def choose(served: Mapping[str, Collection[str]], name: str | None = None) -> Dialect | None:
    """The best dialect, or the one called `name`, if the cluster serves what it needs.

    `served` is version of scheduling.k8s.io -> plural names of its resources.
    """
    offered = ON_DISCOVERY if name is None else [d for d in (*ON_DISCOVERY, *ON_REQUEST) if d.name == name]
    return next((dialect for dialect in offered if dialect.needs <= set(served.get(dialect.version, ()))), None)


def by_name(name: str) -> Dialect | None:
    """The dialect called so, whether or not a cluster serves it."""
    return next((dialect for dialect in (*ON_DISCOVERY, *ON_REQUEST) if dialect.name == name), None)


__all__ = ["NAMES", "ON_DISCOVERY", "ON_REQUEST", "TEMPLATE_NAME", "Dialect", "Group", "Native", "by_name", "choose"]
