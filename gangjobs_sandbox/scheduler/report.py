"""Tells why a pod or a gang does not fit: conditions of pods and PodGroups, and Events.

The texts are those of the kube-scheduler of each release, including the part about preemption. The conformance tests
compare them. An unchanged condition is not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.controllers.meta import find_condition, has_condition, name_of, namespace_of, uid_of
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import PODGROUPS, PODS, Resource
from gangjobs_sandbox.scheduler.cache import SCHEDULER_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.releases import Release
    from gangjobs_sandbox.scheduler.nodes import Obj
    from gangjobs_sandbox.scheduler.placement import Placement, Refusal


_GROUP = "pod group is unschedulable"
_WAITS = (
    f"{_GROUP}, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)

_NO_PREEMPTION = " not found"
"""The answer of the plugin DynamicResources to the question whether preemption helps a pod that PreFilter refused."""


_COMPARED_FIELDS = ("status", "reason", "message")


@dataclass(frozen=True)
class Eviction:
    """The evictions for a pod or group: the nominated node, and the number of victims."""

    node: str
    victims: int


@dataclass(frozen=True)
class Gang:
    """The minimum size of a gang, and the number of its pods that are bound."""

    minimum: int
    bound: int


class Messages:
    """The messages of one release."""

    def __init__(self, release: Release) -> None:
        self._is_gang_native = release.schedules_groups
        self._preemption_start = (
            " preemption: " if self._is_gang_native else " no new claims to deallocate, preemption: "
        )

    def pod(self, refusal: Refusal, eviction: Eviction | None = None) -> str:
        """Return the message of a pod that was tried alone."""
        if not refusal.nodes:
            return refusal.text
        if refusal.is_by_prefilter:
            return f"{refusal.text}{_NO_PREEMPTION}"
        if eviction is None:
            return f"{refusal.text}{self._preemption_start}{_no_victims_text(refusal)}"
        if not self._is_gang_native:
            return refusal.text
        found = f"found a potential placement for pod on node {eviction.node}, preempting {eviction.victims} victims"
        return f"{refusal.text}{self._preemption_start}{found}"

    def group(self, gang: Gang, placement: Placement, eviction: Eviction | None) -> str:
        """Return the message of a group that could not be placed."""
        if self._is_gang_native:
            found = "No preemption victims found for incoming preemptor"
            if eviction is not None:
                found = f"found a placement for podgroup, preempting {eviction.victims} victims"
            return f"{self._min_count_text(gang, placement)}, pod group preemption: {found}"
        return _GROUP if eviction is None else f"{_GROUP}, pod group is waiting for preemption to complete"

    def members(
        self, pods: Sequence[Obj], gang: Gang, placement: Placement, eviction: Eviction | None
    ) -> dict[str, str]:
        """Return, by UID, the messages of a group's pods without a node. `pods` is in the order of the attempts."""
        if not self._is_gang_native:
            messages = {uid: self.pod(refusal, eviction) for uid, refusal in placement.refused.items()}
            return (
                messages if placement.is_feasible else {uid_of(pod): messages.get(uid_of(pod), _WAITS) for pod in pods}
            )
        messages = {uid: refusal.text for uid, refusal in placement.refused.items()}
        if placement.shortfall is None:
            return messages
        group = f"{_GROUP}, {self.group(gang, placement, eviction)}"
        tried = len(pods) - placement.shortfall.remaining
        min_count_text = self._min_count_text(gang, placement)
        return {
            **{uid_of(pod): messages.get(uid_of(pod), group) for pod in pods[:tried]},
            **{uid_of(pod): min_count_text for pod in pods[tried:]},
        }

    def _min_count_text(self, gang: Gang, placement: Placement) -> str:
        assert placement.shortfall is not None, "only of a group that could not be placed"
        scheduled, remaining = gang.bound + placement.shortfall.placed, placement.shortfall.remaining
        return f"minCount ({gang.minimum}) cannot be satisfied: {scheduled} scheduled, {remaining} remaining"


def _no_victims_text(refusal: Refusal) -> str:
    """Return why preemption evicted no pod."""
    counts = {
        "No preemption victims found for incoming pod": refusal.nodes - refusal.hopeless,
        "Preemption is not helpful for scheduling": refusal.hopeless,
    }
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items() if count))
    return f"0/{refusal.nodes} nodes are available: {listed}."


def priorities_differ(pods: Sequence[Obj], priority: int) -> str | None:
    """Return why 1.37 refuses a group: the priority of a pod differs from the priority of the group (KEP-5710)."""
    for pod in pods:
        own = int(pod["spec"].get("priority") or 0)
        if own != priority:
            rule = "all pods in a single pod group should have the same priority as the pod group's priority"
            return f"{rule}, got {own} and {priority}"
    return None


class Reporter:
    """Writes conditions and Events for one scheduler."""

    def __init__(self, registry: Registry, clock: Clock, pod_group_condition: str | None) -> None:
        self._registry = registry
        self._clock = clock
        self._pod_group_condition = pod_group_condition

    def record_binding(self, pod: Obj, node: str) -> None:
        message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {node}"
        self._registry.record_event(pod, "Normal", "Scheduled", message, SCHEDULER_NAME)

    def record_refusal(self, pod: Obj, message: str, *, reason: str = "Unschedulable") -> None:
        """Record that the pod found no node in this attempt."""
        self._registry.record_event(pod, "Warning", "FailedScheduling", message, SCHEDULER_NAME)
        self._set(PODS, pod, "PodScheduled", "False", reason, message)

    def record_group_placement(self, pod_group: Obj) -> None:
        self._set_group(pod_group, "True", "Scheduled", "")

    def record_group_refusal(self, pod_group: Obj, message: str, *, reason: str = "Unschedulable") -> None:
        """Record that the group was not placed. The condition of a group that was placed before stays true."""
        if not has_condition(pod_group, self._pod_group_condition or ""):
            self._set_group(pod_group, "False", reason, message)

    def _set_group(self, pod_group: Obj, status: str, reason: str, message: str) -> None:
        if self._pod_group_condition is not None:
            self._set(PODGROUPS, pod_group, self._pod_group_condition, status, reason, message)

    def _set(self, resource: Resource, obj: Obj, kind: str, status: str, reason: str, message: str) -> None:
        new = meta.condition(kind, status, reason, message, self._clock.now())
        old = find_condition(obj, kind)
        if old is not None and all(old.get(field) == new[field] for field in _COMPARED_FIELDS):
            return
        conditions = meta.with_condition((obj.get("status") or {}).get("conditions"), new)
        patch = {"metadata": {"uid": uid_of(obj)}, "status": {"conditions": conditions}}
        try:
            self._registry.patch(
                resource, name_of(obj), namespace_of(obj), patch, PatchKind.MERGE, subresource="status"
            )
        except StatusError as exc:
            if exc.code != 404:
                raise
