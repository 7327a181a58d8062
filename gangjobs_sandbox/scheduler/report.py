"""Writes the conditions of pods and PodGroups, and records Events. An unchanged condition is not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.controllers.meta import (
    find_condition,
    has_condition,
    name_of,
    namespace_of,
    uid_of,
)
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import PODGROUPS, PODS, Resource
from gangjobs_sandbox.scheduler.cache import SCHEDULER_NAME

if TYPE_CHECKING:
    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.scheduler.nodes import Obj

_COMPARED_FIELDS = ("status", "reason", "message")


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
