"""Reads Kubernetes objects: owners, finalizers, conditions, times, taints and tolerations.

The functions are pure: none changes its arguments.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import clock
from gangjobs_sandbox.clock import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Obj = dict[str, Any]
"""A Kubernetes object as JSON. The registry returns shared objects: copy an object before you change it."""

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_REFUSING_EFFECTS = frozenset({NO_SCHEDULE, NO_EXECUTE})


def name_of(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Mapping[str, Any]) -> str:
    """Return the namespace, or "" for a cluster-scoped object."""
    return str(obj["metadata"].get("namespace") or "")


def uid_of(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["uid"])


def annotations_of(obj: Mapping[str, Any]) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def labels_of(obj: Mapping[str, Any]) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def finalizers_of(obj: Mapping[str, Any]) -> list[str]:
    return obj["metadata"].get("finalizers") or []


def owners_of(obj: Mapping[str, Any]) -> list[Obj]:
    return obj["metadata"].get("ownerReferences") or []


def is_deleting(obj: Mapping[str, Any]) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


def controller_of(obj: Mapping[str, Any]) -> Obj | None:
    """Return the owner reference of the object's controller, if there is one."""
    return next((ref for ref in owners_of(obj) if ref.get("controller")), None)


def controller_ref(owner: Mapping[str, Any]) -> Obj:
    """Return a controller reference to `owner` that blocks the owner's foreground deletion."""
    return {**owner_ref(owner), "controller": True, "blockOwnerDeletion": True}


def owner_ref(owner: Mapping[str, Any]) -> Obj:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
    }


def phase_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminal(pod: Mapping[str, Any]) -> bool:
    """Return whether the phase is Succeeded or Failed. The containers of such a pod never run again."""
    return phase_of(pod) in TERMINAL_PHASES


def node_of(pod: Mapping[str, Any]) -> str | None:
    return pod["spec"].get("nodeName") or None


def find_condition(obj: Mapping[str, Any], kind: str) -> Obj | None:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def has_condition(obj: Mapping[str, Any], kind: str, *, status: str = "True") -> bool:
    condition = find_condition(obj, kind)
    return condition is not None and condition.get("status") == status


def with_condition(conditions: list[Obj] | None, new: Obj) -> list[Obj]:
    """Return the list with `new` in place of the condition of the same type, or at the end.

    The transition time stays if the status does not change, as the API conventions require.
    """
    result = list(conditions or [])
    for position, old in enumerate(result):
        if old.get("type") == new["type"]:
            same = old.get("status") == new["status"] and old.get("lastTransitionTime")
            result[position] = {**new, "lastTransitionTime": old["lastTransitionTime"]} if same else new
            return result
    return [*result, new]


def condition(kind: str, status: str, reason: str, message: str, now: datetime) -> Obj:
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": timestamp(now),
        "reason": reason,
        "message": message,
    }


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp of the API. Returns None for None."""
    return clock.parse_time(text) if text else None


def deleted_at(obj: Mapping[str, Any]) -> datetime | None:
    """Return when the deletion was requested. The deletion timestamp is one grace period later."""
    end = parse_time(obj["metadata"].get("deletionTimestamp"))
    if end is None:
        return None
    return end - timedelta(seconds=obj["metadata"].get("deletionGracePeriodSeconds") or 0)


def taints_of(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (node.get("spec") or {}).get("taints") or []


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return whether the toleration matches the taint. An empty key or effect matches every taint."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def first_untolerated(pod: Mapping[str, Any], taints: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first taint that prevents the placement of the pod. PreferNoSchedule never prevents a placement."""
    tolerations = pod["spec"].get("tolerations") or ()
    for taint in taints:
        if taint["effect"] in _REFUSING_EFFECTS and not any(tolerates(one, taint) for one in tolerations):
            return taint
    return None


def tolerated_s(pod: Mapping[str, Any], taint: Mapping[str, Any]) -> float | None:
    """Return for how many seconds the pod may stay on a node with this NoExecute taint. None means forever."""
    matching = [one for one in pod["spec"].get("tolerations") or () if tolerates(one, taint)]
    if not matching:
        return 0.0
    limits = [float(one["tolerationSeconds"]) for one in matching if one.get("tolerationSeconds") is not None]
    return max(min(limits), 0.0) if limits else None
