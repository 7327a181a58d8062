"""Node lifecycle: marks nodes that stop reporting, taints them, and evicts their pods.

A node reports by renewing its Lease or by the heartbeat of its Ready condition. Taints follow the Ready condition. The
tolerations of a pod determine how long the pod stays on a node with a NoExecute taint.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gangjobs_sandbox.clock import Clock, timestamp
from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.controllers.meta import (
    NO_EXECUTE,
    NO_SCHEDULE,
    NOT_READY,
    UNREACHABLE,
    Obj,
    find_condition,
    has_condition,
    is_deleting,
    is_terminal,
    name_of,
    namespace_of,
    node_of,
    parse_time,
    taints_of,
    tolerated_s,
    uid_of,
)
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import LEASES, NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gangjobs_sandbox.store import Event

GRACE_S = 50.0
"""The default of --node-monitor-grace-period of kube-controller-manager."""

COMPONENT = "node-controller"
EVICTION_COMPONENT = "taint-eviction-controller"
LEASE_NAMESPACE = "kube-node-lease"

_NODE, _POD = "node", "pod"
_TAINT_BY_READY = {"True": None, "False": NOT_READY, "Unknown": UNREACHABLE}
_OWN_TAINTS = frozenset({NOT_READY, UNREACHABLE})
_REPORTED_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


class NodeLifecycle:
    """Taints lost nodes and evicts their pods. Keys are ("node", "", name) and ("pod", namespace, name)."""

    name = "node-lifecycle"

    def __init__(self, registry: Registry, clock: Clock, *, grace_s: float = GRACE_S) -> None:
        self._registry = registry
        self._clock = clock
        self._grace_s = grace_s
        self._nodes: dict[str, Obj] = {}
        self._renewed: dict[str, datetime] = {}
        self._pods_of: dict[str, dict[str, Obj]] = {}
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for node in registry.list(NODES):
            self._node(node)
        for lease in registry.list(LEASES, LEASE_NAMESPACE):
            self._lease(lease)
        for pod in registry.list(PODS):
            self._pod(pod, is_gone=False)

    def observe(self, event: Event) -> None:
        is_gone = event.type == "DELETED"
        if event.resource is NODES:
            if is_gone:
                self._nodes.pop(name_of(event.obj), None)
            else:
                self._node(event.obj)
        elif event.resource is LEASES:
            if namespace_of(event.obj) == LEASE_NAMESPACE and not is_gone:
                self._lease(event.obj)
        elif event.resource is PODS:
            self._pod(event.obj, is_gone=is_gone)

    def sync(self, key: Hashable) -> None:
        """Check the last report of a node, or the taints of a pod's node. Raises StatusError."""
        assert isinstance(key, tuple)
        kind, namespace, name = key
        try:
            if kind == _NODE:
                self._sync_node(name)
            else:
                self._sync_pod(namespace, name)
        except StatusError as exc:
            if exc.code != 404:
                raise

    def _sync_node(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        silent_s = (self._clock.now() - self._last_report(node)).total_seconds()
        if silent_s >= self._grace_s:
            self._mark_unknown(node)
        else:
            self.queue.add((_NODE, "", name), after_s=self._grace_s - silent_s)
        self._taint(self._nodes.get(name, node))

    def _last_report(self, node: Obj) -> datetime:
        ready = find_condition(node, "Ready") or {}
        times = [
            self._renewed.get(name_of(node)),
            parse_time(ready.get("lastHeartbeatTime")),
            parse_time(node["metadata"].get("creationTimestamp")),
        ]
        return max(time for time in times if time is not None)

    def _mark_unknown(self, node: Obj) -> None:
        if has_condition(node, "Ready", status="Unknown"):
            return
        old = (node.get("status") or {}).get("conditions")
        conditions = list(old or [])
        never = find_condition(node, "Ready") is None
        reason = "NodeStatusNeverUpdated" if never else "NodeStatusUnknown"
        message = "Kubelet never posted node status." if never else "Kubelet stopped posting node status."
        for kind in _REPORTED_CONDITIONS:
            new = meta.condition(kind, "Unknown", reason, message, self._clock.now())
            heartbeat = (find_condition(node, kind) or {}).get("lastHeartbeatTime")
            conditions = meta.with_condition(
                conditions, {**new, **({"lastHeartbeatTime": heartbeat} if heartbeat else {})}
            )
        self._patch_status(node, conditions)
        message = f"Node {name_of(node)} status is now: NodeNotReady"
        self._registry.record_event(node, "Normal", "NodeNotReady", message, COMPONENT)
        for pod in list(self._pods_of.get(name_of(node), {}).values()):
            self._mark_not_ready(pod)

    def _mark_not_ready(self, pod: Obj) -> None:
        if not has_condition(pod, "Ready"):
            return
        ready = {
            **(find_condition(pod, "Ready") or {}),
            "status": "False",
            "lastTransitionTime": timestamp(self._clock.now()),
        }
        status = {"conditions": [ready]}
        self._registry.patch(
            PODS, name_of(pod), namespace_of(pod), {"status": status}, PatchKind.STRATEGIC, subresource="status"
        )
        self._registry.record_event(pod, "Warning", "NodeNotReady", "Node is not ready", COMPONENT)

    def _taint(self, node: Obj) -> None:
        """Make the not-ready and unreachable taints of the node match its Ready condition."""
        ready = find_condition(node, "Ready")
        if ready is None:
            return
        wanted = _TAINT_BY_READY[ready["status"]]
        taints = taints_of(node)
        kept = [taint for taint in taints if taint["key"] not in _OWN_TAINTS or taint["key"] == wanted]
        present = {(taint["key"], taint["effect"]) for taint in kept}
        missing = [effect for effect in (NO_SCHEDULE, NO_EXECUTE) if wanted and (wanted, effect) not in present]
        kept.extend({"key": wanted, "effect": effect, "timeAdded": timestamp(self._clock.now())} for effect in missing)
        if kept != taints:
            patch = {"spec": {"taints": kept or None}}
            self._registry.patch(NODES, name_of(node), None, patch, PatchKind.MERGE)

    def _sync_pod(self, namespace: str, name: str) -> None:
        pod = self._registry.get(PODS, name, namespace)
        due = self._eviction_due(pod)
        if due is None or is_deleting(pod) or is_terminal(pod):
            return
        if due > self._clock.now():
            self._enqueue_pod(pod, due)
            return
        message = f"Marking for deletion Pod {namespace}/{name}"
        self._registry.record_event(pod, "Normal", "TaintManagerEviction", message, EVICTION_COMPONENT)
        reason, text = "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
        condition = meta.condition("DisruptionTarget", "True", reason, text, self._clock.now())
        patch = {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": [condition]}}
        self._registry.patch(PODS, name, namespace, patch, PatchKind.STRATEGIC, subresource="status")
        self._registry.delete(PODS, name, namespace, uid=uid_of(pod))

    def _eviction_due(self, pod: Obj) -> datetime | None:
        """Return when the pod must leave its node, or None if the pod may stay."""
        node = self._nodes.get(node_of(pod) or "")
        dues = []
        for taint in taints_of(node) if node else ():
            if taint["effect"] != NO_EXECUTE:
                continue
            wait_s = tolerated_s(pod, taint)
            if wait_s is not None:
                dues.append((parse_time(taint.get("timeAdded")) or self._clock.now()) + timedelta(seconds=wait_s))
        return min(dues, default=None)

    def _node(self, node: Obj) -> None:
        old = self._nodes.get(name_of(node))
        self._nodes[name_of(node)] = node
        self.queue.add((_NODE, "", name_of(node)))
        if old is None or taints_of(old) != taints_of(node):
            for pod in self._pods_of.get(name_of(node), {}).values():
                self.queue.add((_POD, namespace_of(pod), name_of(pod)))

    def _lease(self, lease: Obj) -> None:
        renewed = parse_time(lease["spec"].get("renewTime"))
        if renewed is not None:
            self._renewed[name_of(lease)] = renewed

    def _pod(self, pod: Obj, *, is_gone: bool) -> None:
        node = node_of(pod)
        if node is None:
            return
        if is_gone or is_terminal(pod):
            self._pods_of.get(node, {}).pop(uid_of(pod), None)
            return
        self._pods_of.setdefault(node, {})[uid_of(pod)] = pod
        due = self._eviction_due(pod)
        if due is not None and not is_deleting(pod):
            self._enqueue_pod(pod, due)

    def _enqueue_pod(self, pod: Obj, due: datetime) -> None:
        after_s = (due - self._clock.now()).total_seconds()
        self.queue.add((_POD, namespace_of(pod), name_of(pod)), after_s=after_s)

    def _patch_status(self, node: Obj, conditions: list[Obj]) -> None:
        patch = {"status": {"conditions": conditions}}
        self._registry.patch(NODES, name_of(node), None, patch, PatchKind.MERGE, subresource="status")
