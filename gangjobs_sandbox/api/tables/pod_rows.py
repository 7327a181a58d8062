"""The table row of a pod, whose STATUS summarizes the states of its containers (`printPod` of the API server).

Ages are printed as kubectl prints them (`k8s.io/apimachinery/pkg/util/duration`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gangjobs_sandbox.store import Object

__all__ = ["UNKNOWN", "between", "human", "pod_cells", "since"]


UNKNOWN = "<unknown>"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 365 * 86_400

_STEPS = (
    (2 * _MINUTE, (1, "s"), None),
    (10 * _MINUTE, (_MINUTE, "m"), (1, "s")),
    (3 * _HOUR, (_MINUTE, "m"), None),
    (8 * _HOUR, (_HOUR, "h"), (_MINUTE, "m")),
    (2 * _DAY, (_HOUR, "h"), None),
    (8 * _DAY, (_DAY, "d"), (_HOUR, "h")),
    (2 * _YEAR, (_DAY, "d"), None),
    (8 * _YEAR, (_YEAR, "y"), (_DAY, "d")),
)
"""Below this many seconds: the larger unit, and the smaller unit, or None if the larger unit is used alone."""


_NONE = "<none>"


def human(seconds: float) -> str:
    """Format a duration with at most two units, such as `5m30s`."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    for limit, (big, big_name), small in _STEPS:
        if whole < limit:
            rest = whole % big // small[0] if small else 0
            return f"{whole // big}{big_name}" + (f"{rest}{small[1]}" if small and rest else "")
    return f"{whole // _YEAR}y"


def since(text: str | None, now: datetime) -> str:
    """Format the time since a timestamp."""
    return human((now - parse_time(text)).total_seconds()) if text else UNKNOWN


def between(start: str, end: str) -> str:
    """Format the time between two timestamps."""
    return human((parse_time(end) - parse_time(start)).total_seconds())


def pod_cells(pod: Object, now: datetime) -> list[Any]:
    """Return name, ready, status, restarts and age, and for `-o wide` IP, node, nominated node and readiness gates."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    ready = sum(1 for c in containers if c.get("ready") and "running" in (c.get("state") or {}))
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or [])}",
        _status(pod),
        _restarts(containers, now),
        since(pod["metadata"].get("creationTimestamp"), now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _restarts(containers: list[Mapping[str, Any]], now: datetime) -> str:
    count = sum(int(c.get("restartCount") or 0) for c in containers)
    ends = [((c.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for c in containers]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({since(last, now)} ago)" if count and last else str(count)


def _status(pod: Object) -> str:
    status = pod.get("status") or {}
    phase = status.get("phase") or ""
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    reason = status.get("reason") or phase
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    initializing = _initializing(pod)
    if initializing is None or conditions.get("Initialized", {}).get("status") == "True":
        is_ready = conditions.get("Ready", {}).get("status") == "True"
        reason = _containers_reason(status.get("containerStatuses") or [], reason, is_ready=is_ready)
    else:
        reason = initializing
    if "deletionTimestamp" not in pod["metadata"]:
        return str(reason)
    if status.get("reason") == "NodeLost":
        return "Unknown"
    return str(reason) if phase in {"Succeeded", "Failed"} else "Terminating"


def _initializing(pod: Object) -> str | None:
    """Return the state of the first init container that has not finished."""
    total = len((pod.get("spec") or {}).get("initContainers") or ())
    for position, container in enumerate((pod.get("status") or {}).get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        if (ended := state.get("terminated")) is not None:
            if ended.get("exitCode") == 0:
                continue
            return "Init:" + _ended(ended)
        waiting = (state.get("waiting") or {}).get("reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{position}/{total}"
    return None


def _containers_reason(containers: list[Mapping[str, Any]], reason: str, *, is_ready: bool) -> str:
    has_running, failure = False, ""
    for container in reversed(containers):
        state = container.get("state") or {}
        if waiting := (state.get("waiting") or {}).get("reason"):
            reason = waiting
        elif (ended := state.get("terminated")) is not None:
            reason = _ended(ended)
            failure = reason if ended.get("exitCode") else failure
        elif container.get("ready") and "running" in state:
            has_running = True
    if reason != "Completed":
        return reason
    if has_running:
        return "Running" if is_ready else failure or "NotReady"
    return failure or reason


def _ended(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode')}"
