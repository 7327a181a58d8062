"""The `status` of a pod: its phase, conditions and container statuses, and the task that writes them to the API server.

The rules are those of the kubelet's `getPhase` and `GeneratePod*Condition` (pkg/kubelet/kubelet_pods.go,
pkg/kubelet/status/generate.go), because controllers and users match the texts. The conditions that the scheduler writes
are not among them: the status is merged into the stored one.

One task per pod writes all statuses, so they arrive in order. Intermediate statuses may be skipped. The task runs until
the server has the last status or the pod no longer exists.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import ApiClient, UnreachableError, core_path
from gangjobs_sandbox.node.pod_state import ContainerState, Kind, PhaseOverride, PodState, Terminated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

__all__ = [
    "TERMINAL_PHASES",
    "StatusWriter",
    "delete_pod",
    "is_terminal",
    "phase_of",
    "pod_status",
    "terminate_unfinished",
]


TERMINAL_PHASES = ("Succeeded", "Failed")
_NEVER = "1970-01-01T00:00:00Z"
"""The start time of a container that could not start, as container runtimes report it."""


_log = logging.getLogger(__name__)
_MAYBE_GONE = (404, 409, 422)
"""Status codes for a write to a deleted or replaced pod. The last two codes can also have other causes."""
_RETRY_FIRST_S, _RETRY_MAX_S = 0.2, 10.0


def is_terminal(pod: dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES


def pod_status(state: PodState, restart_policy: str, now: datetime) -> dict[str, Any]:
    """Return the whole status that the node is responsible for."""
    phase = phase_of(state, restart_policy)
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": _conditions(state, phase, now),
        "hostIP": state.host_ip,
        "hostIPs": [{"ip": state.host_ip}],
        "startTime": timestamp(state.started),
    }
    if state.pod_ip:
        status |= {"podIP": state.pod_ip, "podIPs": [{"ip": state.pod_ip}]}
    if phase_override := _override_of(state):
        status |= {key: value for key in ("reason", "message") if (value := getattr(phase_override, key))}
    for field, kinds in (("initContainerStatuses", (Kind.INIT, Kind.SIDECAR)), ("containerStatuses", (Kind.MAIN,))):
        if found := state.of_kind(*kinds):
            status[field] = [_container_status(container) for container in found]
    return status


def phase_of(state: PodState, restart_policy: str) -> str:
    """Return Pending, Running, Succeeded or Failed."""
    if phase_override := _override_of(state):
        return phase_override.phase
    inits, mains = state.of_kind(Kind.INIT, Kind.SIDECAR), state.of_kind(Kind.MAIN)
    if any(_has_failed(container) for container in inits) and (restart_policy == "Never" or state.stopped):
        return "Failed"
    # A container that waits for its next run counts as stopped. A container that never ran counts as pending.
    never_ran = [container for container in mains if container.waiting and not container.last]
    running = [container for container in mains if container.running_since]
    if never_ran or not all(_has_initialized(container) for container in inits):
        return "Failed" if state.stopped and not running else "Pending"
    if running:
        return "Running"
    return _stopped_phase(mains, restart_policy, stopped=state.stopped)


def terminate_unfinished(state: PodState, now: datetime) -> None:
    """Set an end for every container of a stopped pod, as the kubelet does before the last status."""
    if not any(container.ended or container.last for container in state.of_kind(Kind.MAIN)):
        return
    for container in state.containers:
        if not container.ended:
            container.end(container.last or Terminated.lost(now))


def _override_of(state: PodState) -> PhaseOverride | None:
    """Return the phase that the node has set, once it takes effect."""
    in_effect = state.stopped or all(container.ended for container in state.containers)
    return state.phase_override if in_effect else None


def _stopped_phase(mains: Iterable[ContainerState], restart_policy: str, *, stopped: bool) -> str:
    ends = [container.ended or container.last for container in mains]
    if restart_policy == "Always" and not stopped:
        return "Running"
    if all(end is not None and end.exit_code == 0 for end in ends):
        return "Succeeded"
    return "Failed" if restart_policy == "Never" or stopped else "Running"


def _has_failed(container: ContainerState) -> bool:
    return container.kind is Kind.INIT and container.ended is not None and container.ended.exit_code != 0


def _has_initialized(container: ContainerState) -> bool:
    """Return whether the container has initialized. A sidecar that waits for a restart has started once."""
    if container.kind is Kind.SIDECAR:
        return bool(container.running_since or container.ended or container.last)
    return container.succeeded


def _conditions(state: PodState, phase: str, now: datetime) -> list[dict[str, Any]]:
    uninitialized = [item.name for item in state.of_kind(Kind.INIT, Kind.SIDECAR) if not _has_initialized(item)]
    unready = [item.name for item in state.of_kind(Kind.SIDECAR, Kind.MAIN) if not item.ready]
    readiness = _readiness(phase, unready)
    initialized: tuple[bool, str, str] = (True, "", "")
    if phase == "Succeeded":
        initialized = (True, "PodCompleted", "")
    elif uninitialized:
        message = f"containers with incomplete status: [{' '.join(uninitialized)}]"
        initialized = (False, "ContainersNotInitialized", message)
    table = {
        "PodReadyToStartContainers": (state.network_ready, "", ""),
        "Initialized": initialized,
        "Ready": readiness,
        "ContainersReady": readiness,
    }
    return [_condition(state, kind, *value, now=now) for kind, value in table.items()]


def _readiness(phase: str, unready: list[str]) -> tuple[bool, str, str]:
    if phase == "Succeeded":
        return False, "PodCompleted", ""
    if phase == "Failed":
        return False, "PodFailed", ""
    if unready:
        return False, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    return True, "", ""


def _condition(state: PodState, kind: str, holds: bool, reason: str, message: str, *, now: datetime) -> dict[str, Any]:
    """Build a condition. The state keeps the time of its last transition."""
    value = "True" if holds else "False"
    before = state.conditions.get(kind, {})
    since = before["lastTransitionTime"] if before.get("status") == value else timestamp(now)
    condition: dict[str, Any] = {"type": kind, "status": value, "lastTransitionTime": since}
    # None removes an earlier text when the status is merged into the stored one.
    condition |= {"reason": reason or None, "message": message or None}
    state.conditions[kind] = condition
    return condition


def _container_status(container: ContainerState) -> dict[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": container.succeeded if container.kind is Kind.INIT else container.ready,
        "started": container.running_since is not None,
        "restartCount": container.restarts,
        "state": _container_state(container),
        "lastState": {"terminated": _terminated(container.last)} if container.last else {},
        **({"containerID": container.container_id} if container.container_id else {}),
    }


def _container_state(container: ContainerState) -> dict[str, Any]:
    if container.ended:
        return {"terminated": _terminated(container.ended)}
    if container.running_since:
        return {"running": {"startedAt": timestamp(container.running_since)}}
    assert container.waiting is not None
    waiting = {"message": container.waiting.message} if container.waiting.message else {}
    return {"waiting": {"reason": container.waiting.reason, **waiting}}


def _terminated(ended: Terminated) -> dict[str, Any]:
    return {
        "exitCode": ended.exit_code,
        "reason": ended.reason,
        **({"message": ended.message} if ended.message else {}),
        "startedAt": timestamp(ended.started) if ended.started else _NEVER,
        "finishedAt": timestamp(ended.finished),
        **({"containerID": ended.container_id} if ended.container_id else {}),
    }


class StatusWriter:
    """Writes the status of one pod. `render` returns the current status, or None if there is nothing to write."""

    def __init__(self, client: ApiClient, pod: Mapping[str, Any], render: Callable[[], dict[str, Any] | None]) -> None:
        metadata = pod["metadata"]
        self._client = client
        self._uid = metadata["uid"]
        self._path = core_path("pods", metadata["name"], namespace=metadata["namespace"])
        self._render = render
        self._dirty = asyncio.Event()
        self._written = asyncio.Event()
        self._last: dict[str, Any] | None = None

    def mark_changed(self) -> None:
        """Report that the status may have changed."""
        self._written.clear()
        self._dirty.set()

    async def wait_until_written(self) -> None:
        """Wait until the server has the current status, or the pod is gone."""
        self.mark_changed()
        await self._written.wait()

    async def run(self) -> None:
        """Write statuses until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write()
            if not self._dirty.is_set():
                self._written.set()

    async def _write(self) -> None:
        retry = _RETRY_FIRST_S
        while (status := self._render()) is not None and status != self._last:
            try:
                await self._client.patch(f"{self._path}/status", {"metadata": {"uid": self._uid}, "status": status})
            except (StatusError, UnreachableError) as error:
                if not await _is_gone(self._client, self._path, self._uid, error):
                    _log.info("status of %s not written, trying again in %.1f s: %s", self._path, retry, error)
                    await asyncio.sleep(retry)
                    retry = min(retry * 2, _RETRY_MAX_S)
                    continue
            self._last = status


async def delete_pod(client: ApiClient, pod: Mapping[str, Any]) -> None:
    """Delete a pod with grace period 0. The object is removed, unless it has a finalizer."""
    metadata, retry = pod["metadata"], _RETRY_FIRST_S
    path = core_path("pods", metadata["name"], namespace=metadata["namespace"])
    while True:
        try:
            await client.delete(path, uid=metadata["uid"], grace_period_s=0)
        except (StatusError, UnreachableError) as error:
            if await _is_gone(client, path, metadata["uid"], error):
                return
            _log.info("%s not deleted, trying again in %.1f s: %s", path, retry, error)
            await asyncio.sleep(retry)
            retry = min(retry * 2, _RETRY_MAX_S)
        else:
            return


async def _is_gone(client: ApiClient, path: str, uid: str, error: StatusError | UnreachableError) -> bool:
    """Return whether a write failed because no pod of this name and UID exists any more."""
    if isinstance(error, UnreachableError) or error.code not in _MAYBE_GONE:
        return False
    try:
        stored = await client.get(path)
    except StatusError as answer:
        return answer.code == 404
    except UnreachableError:
        return False
    return bool(stored["metadata"]["uid"] != uid)
