"""Taints of nodes and the tolerations of pods. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

_REFUSING_EFFECTS = frozenset({NO_SCHEDULE, NO_EXECUTE})


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
