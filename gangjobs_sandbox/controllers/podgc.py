"""Pod garbage collection: deletes pods that no other component ends.

These are pods of nodes that do not exist or are out of service, and pods that were deleted before they had a node. The
controller runs every 20 s of its clock while there may be such pods. It does not delete finished pods above a limit.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.controllers.meta import (
    NO_EXECUTE,
    OUT_OF_SERVICE,
    Obj,
    has_condition,
    is_deleting,
    is_terminal,
    name_of,
    namespace_of,
    node_of,
    taints_of,
    uid_of,
)
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.store import Event

PERIOD_S = 20.0
QUARANTINE_S = 40.0
"""The quarantine of a missing node before its pods are deleted: the node object may return."""

_ALL_PODS = "all pods"


class PodGc:
    """Deletes pods that no other component ends. The only key is the pass over all pods."""

    name = "pod-garbage-collector"

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._started = clock.now()
        self._pods: dict[str, Obj] = {}
        self._nodes: dict[str, Obj] = {}
        self._missing_since: dict[str, datetime] = {}
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for node in registry.list(NODES):
            self._nodes[name_of(node)] = node
        for pod in registry.list(PODS):
            self._put(pod)

    def observe(self, event: Event) -> None:
        if event.resource is NODES:
            if event.type == "DELETED":
                self._nodes.pop(name_of(event.obj), None)
                self._enqueue()
            else:
                self._nodes[name_of(event.obj)] = event.obj
                if _is_out_of_service(event.obj):
                    self._enqueue()
        elif event.resource is PODS:
            if event.type == "DELETED":
                self._pods.pop(uid_of(event.obj), None)
            else:
                self._put(event.obj)

    def sync(self, key: Hashable) -> Cooperative[None]:
        """Run one pass. Raises StatusError if the deletion of a pod was refused; the other pods are tried too."""
        refusals: list[StatusError] = []
        yield from self._delete_pods(self._orphaned(), "PodGC: node no longer exists", refusals)
        yield from self._delete_pods(self._unscheduled_terminating(), None, refusals)
        yield from self._delete_pods(self._on_out_of_service_nodes(), None, refusals)
        if self._has_work():
            self._enqueue()
        if refusals:
            raise refusals[0]

    def _orphaned(self) -> list[Obj]:
        """Return the pods whose nodes have been missing for the quarantine."""
        now = self._clock.now()
        missing = {node for pod in self._pods.values() if (node := node_of(pod)) and node not in self._nodes}
        self._missing_since = {node: self._missing_since.get(node, now) for node in missing}
        gone = {node for node, since in self._missing_since.items() if now - since >= timedelta(seconds=QUARANTINE_S)}
        return [pod for pod in self._pods.values() if node_of(pod) in gone]

    def _unscheduled_terminating(self) -> list[Obj]:
        return [pod for pod in self._pods.values() if is_deleting(pod) and node_of(pod) is None]

    def _on_out_of_service_nodes(self) -> list[Obj]:
        nodes = {name for name, node in self._nodes.items() if _is_out_of_service(node)}
        return [pod for pod in self._pods.values() if is_deleting(pod) and node_of(pod) in nodes]

    def _delete_pods(
        self, pods: Iterable[Obj], disruption: str | None, refusals: list[StatusError]
    ) -> Cooperative[None]:
        for pod in pods:
            yield
            try:
                if not is_terminal(pod):
                    self._mark_failed(pod, disruption)
                self._registry.delete(PODS, name_of(pod), namespace_of(pod), uid=uid_of(pod), grace_period_s=0)
            except StatusError as exc:
                if exc.code != 404:
                    refusals.append(exc)

    def _mark_failed(self, pod: Obj, disruption: str | None) -> None:
        status: Obj = {"phase": "Failed"}
        if disruption is not None:
            condition = meta.condition("DisruptionTarget", "True", "DeletionByPodGC", disruption, self._clock.now())
            status["conditions"] = meta.with_condition((pod.get("status") or {}).get("conditions"), condition)
        patch = {"metadata": {"uid": uid_of(pod)}, "status": status}
        self._registry.patch(PODS, name_of(pod), namespace_of(pod), patch, PatchKind.MERGE, subresource="status")

    def _put(self, pod: Obj) -> None:
        self._pods[uid_of(pod)] = pod
        if self._may_be_due(pod):
            self._enqueue()

    def _may_be_due(self, pod: Obj) -> bool:
        name = node_of(pod)
        if name is None:
            return is_deleting(pod)
        node = self._nodes.get(name)
        return node is None or (is_deleting(pod) and _is_out_of_service(node))

    def _has_work(self) -> bool:
        return bool(self._missing_since or self._unscheduled_terminating() or self._on_out_of_service_nodes())

    def _enqueue(self) -> None:
        """Queue a pass for the next multiple of the period, as if the passes ran continuously."""
        elapsed_s = (self._clock.now() - self._started).total_seconds()
        periods = math.floor(elapsed_s / PERIOD_S) + 1
        self.queue.add(_ALL_PODS, after_s=periods * PERIOD_S - elapsed_s)


def _is_out_of_service(node: Obj) -> bool:
    """Return whether an administrator has set the out-of-service taint and the node does not report as Ready."""
    is_tainted = any(taint["key"] == OUT_OF_SERVICE and taint["effect"] == NO_EXECUTE for taint in taints_of(node))
    return is_tainted and not has_condition(node, "Ready")
