"""The scheduler's view of the cluster, kept up to date by events: free resources, waiting pods, members of groups.

A pod uses resources from its binding until it is terminal or removed; a pod that is being deleted still uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.job.indexed_job import ANNOTATION_INDEX
from gangjobs_sandbox.controllers.meta import is_deleting, is_terminal, namespace_of, node_of, uid_of
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.releases import min_count_of, pod_group_of
from gangjobs_sandbox.resources import PODGROUPS
from gangjobs_sandbox.scheduler.nodes import NodeState, Obj, node_state, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangjobs_sandbox.apimachinery.quantity import ResourceList
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.scheduler.nodes import Obj


GroupKey = tuple[str, str]
"""Namespace and name of a PodGroup."""

Rank = tuple[int, str, int, str]
"""The sort key of a pod: negative priority, creation time, index, name."""

SCHEDULER_NAME = "default-scheduler"


class ClusterCache:
    """The cache. The scheduler reports changes with `put_*` and removals with `drop_*`."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.pods: dict[str, Obj] = {}
        """The pods that are not terminal, by UID."""
        self.waiting: dict[str, Obj] = {}
        """The pods that this scheduler may place now, by UID. They are a subset of `pods`."""
        self.placement_generation = 0
        """Increases when a node is added, changed or removed, or when a pod takes resources.

        A placement from an earlier generation may no longer fit.
        """
        self._members: dict[GroupKey, dict[str, Obj]] = {}
        self._usage: dict[str, tuple[str, ResourceList]] = {}

    def put_node(self, obj: Obj) -> None:
        node = node_state(obj)
        self.placement_generation += 1
        self.nodes[node.name] = node
        for name, request in self._usage.values():
            if name == node.name:
                node.reserve(request)

    def drop_node(self, obj: Obj) -> None:
        self.placement_generation += 1
        self.nodes.pop(obj["metadata"]["name"], None)

    def put_pod(self, pod: Obj) -> None:
        if is_terminal(pod):
            self.drop_pod(pod)
            return
        uid, node = uid_of(pod), node_of(pod)
        self.pods[uid] = pod
        if group := group_key(pod):
            self._members.setdefault(group, {})[uid] = pod
        if node is not None and self._usage.get(uid, ("", {}))[0] != node:
            self._take(uid, node, request_of(pod))
        if uid not in self._usage and _is_placeable(pod):
            self.waiting[uid] = pod
        else:
            self.waiting.pop(uid, None)

    def drop_pod(self, pod: Obj) -> None:
        uid = uid_of(pod)
        self._subtract(uid)
        self.pods.pop(uid, None)
        self.waiting.pop(uid, None)
        group = group_key(pod)
        if group is not None and group in self._members:
            self._members[group].pop(uid, None)
            if not self._members[group]:
                del self._members[group]

    def members_of(self, group: GroupKey) -> list[Obj]:
        """Return the pods of the group that are not terminal: a finished pod is not a member (kubernetes#142330)."""
        return list(self._members.get(group, {}).values())

    def member_count(self, group: GroupKey) -> int:
        return len(self._members.get(group, ()))

    def bound_count(self, group: GroupKey) -> int:
        return sum(node_of(pod) is not None for pod in self.members_of(group))

    def waiting_of(self, group: GroupKey) -> list[Obj]:
        return [pod for pod in self.members_of(group) if uid_of(pod) in self.waiting]

    def _take(self, uid: str, node: str, request: ResourceList) -> None:
        self._subtract(uid)
        self.placement_generation += 1
        self._usage[uid] = (node, request)
        if node in self.nodes:
            self.nodes[node].reserve(request)

    def _subtract(self, uid: str) -> None:
        node, request = self._usage.pop(uid, ("", {}))
        if node in self.nodes:
            self.nodes[node].release(request)


def group_key(pod: Obj) -> GroupKey | None:
    """Return the key of the group that the pod names, or None if it names none."""
    name = pod_group_of(pod)
    return None if name is None else (namespace_of(pod), name)


def in_order(pods: Iterable[Obj]) -> Cooperative[list[Obj]]:
    """Sort by priority (highest first), age (oldest first), completion index, and name."""
    ranked: list[tuple[Rank, Obj]] = []
    for pod in pods:
        ranked.append((_rank(pod), pod))
        yield
    return [pod for _, pod in sorted(ranked, key=itemgetter(0))]


def first_of(pods: Iterable[Obj]) -> Cooperative[Obj | None]:
    """Return the first pod in the order of `in_order`, or None if there are no pods."""
    first: tuple[Rank, Obj] | None = None
    for pod in pods:
        rank = _rank(pod)
        if first is None or rank < first[0]:
            first = rank, pod
        yield
    return first[1] if first else None


def priority_of(pod: Obj) -> int:
    """Return the priority that admission has copied from the PriorityClass."""
    return int(pod["spec"].get("priority") or 0)


def _rank(pod: Obj) -> Rank:
    metadata = pod["metadata"]
    index = (metadata.get("labels") or {}).get(ANNOTATION_INDEX, "")
    number = int(index) if index.isascii() and index.isdigit() else 0
    return -priority_of(pod), metadata.get("creationTimestamp") or "", number, metadata["name"]


def _is_placeable(pod: Obj) -> bool:
    spec = pod["spec"]
    return (
        not is_deleting(pod)
        and not spec.get("schedulingGates")
        and spec.get("schedulerName", SCHEDULER_NAME) == SCHEDULER_NAME
    )


@dataclass(frozen=True)
class Group:
    """A group that exists in the API server."""

    min_count: int | None
    """The number of pods that start together, or None for a group that is not a gang."""
    pod_group: Obj
    """The PodGroup object."""


def find_group(registry: Registry, key: GroupKey) -> Group | None:
    """Return the group, or None if it has not been created."""
    namespace, name = key
    try:
        pod_group = registry.get(PODGROUPS, name, namespace)
    except StatusError as exc:
        if exc.code == 404:
            return None
        raise
    return Group(min_count_of(pod_group), pod_group)
