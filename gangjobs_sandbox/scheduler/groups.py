"""The groups to which pods refer: PodGroup objects or, in 1.35, entries of a Workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.releases import min_count_of
from gangjobs_sandbox.resources import PODGROUPS, WORKLOADS, Resource

if TYPE_CHECKING:
    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.scheduler.cache import GroupKey
    from gangjobs_sandbox.scheduler.nodes import Obj


@dataclass(frozen=True)
class Group:
    """A group that exists in the API server."""

    min_count: int | None
    """The number of pods that start together, or None for a group that is not a gang."""
    pod_group: Obj | None = None
    """The PodGroup object, in releases that have PodGroups."""


def find(registry: Registry, key: GroupKey) -> Group | None:
    """Return the group, or None if it has not been created."""
    namespace, ref = key
    if ref.workload is None:
        pod_group = _get(registry, PODGROUPS, ref.name, namespace)
        return None if pod_group is None else Group(min_count_of(pod_group), pod_group)
    workload = _get(registry, WORKLOADS, ref.workload, namespace)
    for entry in workload["spec"].get("podGroups") or () if workload else ():
        if entry["name"] == ref.name:
            return Group(min_count_of(entry))
    return None


def _get(registry: Registry, resource: Resource, name: str, namespace: str) -> Obj | None:
    try:
        return registry.get(resource, name, namespace)
    except StatusError as exc:
        if exc.code == 404:
            return None
        raise
