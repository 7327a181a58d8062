"""The table row of a pod, whose STATUS summarizes the states of its containers (`printPod` of the API server)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.api.tables.durations import since

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gangjobs_sandbox.store import Object

__all__ = ["pod_cells"]

_NONE = "<none>"


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
