"""A summary of a cluster for people: one word for the phase of each Job and pod, and one line for each change.

The functions work on plain Kubernetes objects. The caller fetches the objects and passes the time. `dashboard` shows
the same as tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

__all__ = ["COLORS", "Snapshot", "changes", "job_phase", "node_phase", "path_of", "pod_phase", "progress_of"]

Object = dict[str, Any]

COLORS = {
    "Running": "green",
    "Succeeded": "bright_black",
    "Failed": "red",
    "Pending": "yellow",
    "running": "green",
    "succeeded": "bright_black",
    "failed": "red",
    "suspended": "yellow",
    "assembling": "yellow",
}


@dataclass(frozen=True)
class Snapshot:
    """The objects of a cluster at one time."""

    nodes: Sequence[Object]
    jobs: Sequence[Object]
    pods: Sequence[Object]
    now: datetime


def job_phase(job: Object) -> str:
    """Return the phase of a Job in one word."""
    status, spec = job.get("status") or {}, job.get("spec") or {}
    true = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
    if job["metadata"].get("deletionTimestamp"):
        return "terminating"
    if "Complete" in true or "Failed" in true:
        return "succeeded" if "Complete" in true else "failed"
    if spec.get("suspend"):
        return "suspended"
    done = (status.get("succeeded") or 0) + (status.get("failed") or 0)
    return "running" if (status.get("ready") or 0) + done >= (spec.get("parallelism") or 1) else "assembling"


def pod_phase(pod: Object) -> str:
    """Return the phase of a pod, or the reason why a container waits."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") and status.get("phase") not in {"Succeeded", "Failed"}:
        return "Terminating"
    for container in status.get("containerStatuses") or ():
        if reason := ((container.get("state") or {}).get("waiting") or {}).get("reason"):
            return str(reason)
    return str(status.get("phase") or "Pending")


def changes(before: Snapshot | None, after: Snapshot) -> list[str]:
    """Return one line for each node, Job and pod that was added, changed or deleted."""
    old = {} if before is None else _lines(before)
    new = _lines(after)
    changed = [line for name, line in new.items() if old.get(name) != line]
    return changed + [f"{name} gone" for name in old if name not in new]


def _lines(snapshot: Snapshot) -> dict[str, str]:
    lines: dict[str, str] = {}
    for node in snapshot.nodes:
        name = f"node {node['metadata']['name']}"
        lines[name] = f"{name} {node_phase(node)}"
    for job in snapshot.jobs:
        name = f"job {path_of(job)}"
        lines[name] = f"{name} {job_phase(job)} {progress_of(job)}"
    for pod in snapshot.pods:
        name = f"pod {path_of(pod)}"
        host = (pod.get("spec") or {}).get("nodeName")
        lines[name] = f"{name} {pod_phase(pod)}" + (f" on {host}" if host else "")
    return lines


def node_phase(node: Object) -> str:
    """Return `Ready` or `NotReady`."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return "Ready" if ready else "NotReady"


def progress_of(job: Object) -> str:
    """Return the number of pods of a Job that are ready, or have ended, out of all its pods."""
    status, spec = job.get("status") or {}, job.get("spec") or {}
    total = spec.get("parallelism") or 1
    if status.get("succeeded") or status.get("failed"):
        return f"{status.get('succeeded') or 0}/{spec.get('completions') or total} done"
    return f"{status.get('ready') or 0}/{total}"


def path_of(obj: Object) -> str:
    """Return the namespace and name of an object, as `<namespace>/<name>`."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
