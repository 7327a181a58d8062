"""Pods: defaults, admission, the fields that may change, and the graceful deletion.

The rules are those of `pkg/registry/core/pod/strategy.go` and of the admission plugins ServiceAccount, Priority and
DefaultTolerationSeconds. No token of a ServiceAccount is mounted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.registry import pod_defaults
from gangjobs_sandbox.registry.pod_defaults import default_pod_spec, default_requests
from gangjobs_sandbox.registry.pod_validation import pod_spec_causes
from gangjobs_sandbox.registry.strategies import Context, Strategy, count_generation
from gangjobs_sandbox.resources import PODS, PRIORITYCLASSES, SERVICEACCOUNTS
from gangjobs_sandbox.store import Object, objects_copy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.errors import Cause
    from gangjobs_sandbox.registry.deletion import DeleteOptions

__all__ = ["PodStrategy", "bound", "disrupted", "is_terminal"]

_DEFAULT_ACCOUNT = "default"
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_S = 300
_UPDATE_FORBIDDEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
)
_MUTABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
_QOS_RESOURCES = ("cpu", "memory")


def is_terminal(pod: Mapping[str, Any]) -> bool:
    """Return whether all containers of the pod have ended for good."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def bound(pod: Object, node: str, now: str, annotations: Mapping[str, str] | None) -> Object:
    """Return the pod bound to the node.

    Raises:
        StatusError: 409 if the pod has a node, has scheduling gates, or is being deleted.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    name = metadata["name"]
    if "deletionTimestamp" in metadata:
        raise errors.conflict(PODS, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise errors.conflict(PODS, name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise errors.conflict(PODS, name, f"pod {name} has non-empty .spec.schedulingGates")
    if annotations:
        metadata = {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}
    status = _with_condition(pod.get("status") or {}, "PodScheduled", now)
    return {**pod, "metadata": metadata, "spec": {**spec, "nodeName": node}, "status": status}


def disrupted(pod: Object, now: str) -> Object:
    """Return the pod with the condition of an eviction."""
    condition = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    return {**pod, "status": _with_condition(pod.get("status") or {}, "DisruptionTarget", now, **condition)}


def _with_condition(status: Object, kind: str, now: str, **more: str) -> Object:
    condition = {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now, **more}
    others = [item for item in status.get("conditions") or () if item["type"] != kind]
    return {**status, "conditions": [*others, condition]}


class PodStrategy(Strategy):
    """The rules of pods. A pod that is bound to a node is deleted with a grace period."""

    has_status = True
    defaults_spec_only = True
    returns_deleted = True

    def default(self, obj: Object, context: Context) -> None:
        spec = obj.setdefault("spec", {})
        pod_defaults.drop_from_pod(spec, context.release)
        default_pod_spec(spec)
        default_requests(spec)
        if spec["terminationGracePeriodSeconds"] < 0:
            spec["terminationGracePeriodSeconds"] = 1
        spec.setdefault("enableServiceLinks", True)

    def prepare_create(self, obj: Object, context: Context) -> None:
        obj["metadata"]["generation"] = 1
        spec = obj["spec"]
        _admit_service_account(obj, context)
        _admit_priority(obj, context)
        _add_default_tolerations(spec)
        obj["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}
        if spec.get("schedulingGates"):
            obj["status"]["conditions"] = [_gated_condition(timestamp(context.now))]

    def prepare_update(self, new: Object, old: Object, context: Context) -> None:
        super().prepare_update(new, old, context)
        count_generation(new, old)

    def prepare_status(self, new: Object, old: Object, context: Context) -> None:
        super().prepare_status(new, old, context)
        new["metadata"]["ownerReferences"] = old["metadata"].get("ownerReferences")
        if new["metadata"]["ownerReferences"] is None:
            del new["metadata"]["ownerReferences"]
        new["status"].setdefault("qosClass", old["status"].get("qosClass"))

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        return pod_spec_causes(obj["spec"], "spec")

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        if _with_old_mutable_fields(new["spec"], old["spec"]) == _with_old_mutable_fields(old["spec"], old["spec"]):
            return []
        return [errors.forbidden_field("spec", _UPDATE_FORBIDDEN)]

    def grace_period_s(self, obj: Object, options: DeleteOptions) -> int:
        """Return the grace period in seconds. It is 0 if the pod is not bound to a node or has ended."""
        if not obj["spec"].get("nodeName") or is_terminal(obj):
            return 0
        wanted = options.grace_period_s
        grace_s = obj["spec"].get("terminationGracePeriodSeconds", 0) if wanted is None else wanted
        return 1 if grace_s < 0 else int(grace_s)


def _with_old_mutable_fields(spec: Mapping[str, Any], old: Mapping[str, Any]) -> Object:
    """Return a spec in which the mutable fields have the values of the old spec."""
    frozen: Object = objects_copy(dict(spec))
    for field in _MUTABLE:
        if field in old:
            frozen[field] = old[field]
        else:
            frozen.pop(field, None)
    for field in ("containers", "initContainers"):
        for container, before in zip(frozen.get(field) or (), old.get(field) or (), strict=False):
            container["image"] = before.get("image")
            container["imagePullPolicy"] = before.get("imagePullPolicy")
    return frozen


def _gated_condition(now: str) -> Object:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }


def _admit_service_account(pod: Object, context: Context) -> None:
    """Refuse a pod whose ServiceAccount does not exist. Every namespace has the ServiceAccount `default`."""
    metadata, spec = pod["metadata"], pod["spec"]
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or _DEFAULT_ACCOUNT
    if name != _DEFAULT_ACCOUNT and context.find(SERVICEACCOUNTS, metadata["namespace"], name) is None:
        account = f'{metadata["namespace"]}/{name}: serviceaccount "{name}" not found'
        raise errors.forbidden(PODS, metadata["name"], f"error looking up service account {account}")


def _admit_priority(pod: Object, context: Context) -> None:
    """Set the pod's priority to the value of its priority class."""
    spec, name = pod["spec"], pod["spec"].get("priorityClassName")
    if not name:
        spec["priority"] = 0
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return
    found = context.find(PRIORITYCLASSES, "", name)
    if found is None:
        why = f"no PriorityClass with name {name} was found"
        raise errors.forbidden(PODS, pod["metadata"]["name"], why)
    spec["priority"] = found.get("value", 0)
    spec["preemptionPolicy"] = found.get("preemptionPolicy", "PreemptLowerPriority")


def _add_default_tolerations(spec: Object) -> None:
    tolerations = spec.setdefault("tolerations", [])
    for key in _UNREACHABLE:
        if not any(toleration.get("key") in {key, None} for toleration in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_S}
            )


def _qos_class(spec: Mapping[str, Any]) -> str:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    amounts = [container.get("resources") or {} for container in containers]
    if not any(name in (part.get(kind) or {}) for part in amounts for kind in part for name in _QOS_RESOURCES):
        return "BestEffort"
    limits = [part.get("limits") or {} for part in amounts]
    requests = [part.get("requests") or {} for part in amounts]
    guaranteed = all(
        name in limit and request.get(name) == limit[name]
        for limit, request in zip(limits, requests, strict=True)
        for name in _QOS_RESOURCES
    )
    return "Guaranteed" if guaranteed else "Burstable"
