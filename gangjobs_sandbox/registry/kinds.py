"""The strategy of each resource, and the objects that every cluster contains from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.registry import core, jobs, pods, scheduling
from gangjobs_sandbox.registry.strategies import Strategy
from gangjobs_sandbox.resources import (
    CONFIGMAPS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODGROUPS,
    PODS,
    PRIORITYCLASSES,
    RESOURCES,
    SECRETS,
    SERVICES,
    WORKLOADS,
    Resource,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.store import Object

__all__ = ["STRATEGIES", "first_objects"]

STRATEGIES: dict[Resource, Strategy] = {resource: Strategy() for resource in RESOURCES} | {
    CONFIGMAPS: core.ConfigMapStrategy(),
    EVENTS: core.EventStrategy(),
    JOBS: jobs.JobStrategy(),
    LEASES: core.LeaseStrategy(),
    NAMESPACES: core.NamespaceStrategy(),
    NODES: core.NodeStrategy(),
    PODGROUPS: scheduling.PodGroupStrategy(),
    PODS: pods.PodStrategy(),
    PRIORITYCLASSES: scheduling.PriorityClassStrategy(),
    SECRETS: core.SecretStrategy(),
    SERVICES: core.ServiceStrategy(),
    WORKLOADS: scheduling.WorkloadStrategy(),
}

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def first_objects() -> Iterator[tuple[Resource, Object]]:
    """Return the namespaces and priority classes that exist in every cluster."""
    for name in _NAMESPACES:
        yield NAMESPACES, {"metadata": {"name": name}}
    for name, value in _PRIORITIES.items():
        yield PRIORITYCLASSES, {"metadata": {"name": name}, "value": value}
