"""What goes on in a cluster, for a person: tables of nodes, Jobs and pods, or a line per change.

Works on plain Kubernetes objects, wherever they come from; the caller fetches them and says what time it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.objects.quantity import add, format_bytes, format_cpu, parse_list, requests_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from decimal import Decimal

    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["ROWS_MAX", "Snapshot", "changes", "job_phase", "pod_phase", "tables"]

Object = dict[str, Any]

ROWS_MAX = 24
"""Rows of a table: more do not fit on a screen; the newest are shown."""

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
    """The objects to show, as they were at one moment."""

    nodes: Sequence[Object]
    jobs: Sequence[Object]
    pods: Sequence[Object]
    now: datetime


def job_phase(job: Object) -> str:
    """One word for where a Job stands."""
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
    """The pod's phase, or the reason that says more than the phase."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") and status.get("phase") not in {"Succeeded", "Failed"}:
        return "Terminating"
    for container in status.get("containerStatuses") or ():
        if reason := ((container.get("state") or {}).get("waiting") or {}).get("reason"):
            return str(reason)
    return str(status.get("phase") or "Pending")


def tables(snapshot: Snapshot) -> RenderableType:
    """Nodes, Jobs and pods as three tables below each other."""
    from rich.console import Group  # here, because rich takes long to import and plain lines do without

    return Group(_nodes_table(snapshot), _jobs_table(snapshot), _pods_table(snapshot))


def changes(before: Snapshot | None, after: Snapshot) -> list[str]:
    """A line per Job or pod that is new, looks different, or is gone."""
    old = {} if before is None else _lines(before)
    new = _lines(after)
    told = [line for name, line in new.items() if old.get(name) != line]
    return told + [f"{name} gone" for name in old if name not in new]


def _lines(snapshot: Snapshot) -> dict[str, str]:
    lines: dict[str, str] = {}
    for node in snapshot.nodes:
        name = f"node {node['metadata']['name']}"
        lines[name] = f"{name} {_readiness(node)}"
    for job in snapshot.jobs:
        name = f"job {_path(job)}"
        lines[name] = f"{name} {job_phase(job)} {_ready(job)}"
    for pod in snapshot.pods:
        name = f"pod {_path(pod)}"
        host = (pod.get("spec") or {}).get("nodeName")
        lines[name] = f"{name} {pod_phase(pod)}" + (f" on {host}" if host else "")
    return lines


def _nodes_table(snapshot: Snapshot) -> Table:
    table = _table("node", "state", "pods", "cpu", "memory", "gpu")
    for node in snapshot.nodes:
        name = node["metadata"]["name"]
        mine = [pod for pod in snapshot.pods if _holds_resources(pod, name)]
        used = add(*(requests_of(pod["spec"]) for pod in mine))
        room = parse_list((node.get("status") or {}).get("allocatable"))
        shares = [_share(used, room, resource) for resource in ("cpu", "memory", "nvidia.com/gpu")]
        table.add_row(name, _readiness(node), str(len(mine)), *shares)
    return table


def _jobs_table(snapshot: Snapshot) -> Table:
    table = _table("job", "phase", "ready", "age")
    for job in _newest(snapshot.jobs):
        table.add_row(_path(job), _colored(job_phase(job)), _ready(job), _age(job, snapshot.now))
    return table


def _pods_table(snapshot: Snapshot) -> Table:
    table = _table("pod", "phase", "node", "age")
    for pod in _newest(snapshot.pods):
        node = (pod.get("spec") or {}).get("nodeName") or "-"
        table.add_row(_path(pod), _colored(pod_phase(pod)), node, _age(pod, snapshot.now))
    hidden = Counter(pod_phase(pod) for pod in snapshot.pods)
    table.caption = ", ".join(f"{count} {phase}" for phase, count in sorted(hidden.items())) or "no pods"
    return table


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True, caption_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=True, ratio=3 if column in {"job", "pod"} else 1)
    return table


def _newest(objects: Iterable[Object]) -> list[Object]:
    ordered = sorted(objects, key=lambda obj: (str(obj["metadata"].get("creationTimestamp")), obj["metadata"]["name"]))
    return ordered[-ROWS_MAX:]


def _holds_resources(pod: Object, node: str) -> bool:
    return (pod.get("spec") or {}).get("nodeName") == node and (pod.get("status") or {}).get("phase") not in {
        "Succeeded",
        "Failed",
    }


def _share(used: Mapping[str, Decimal], room: Mapping[str, Decimal], resource: str) -> str:
    if resource not in room:
        return "-"
    text = format_bytes if resource == "memory" else format_cpu
    return f"{text(used[resource]) if used.get(resource) else 0} / {text(room[resource])}"


def _readiness(node: Object) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return "Ready" if ready else "NotReady"


def _ready(job: Object) -> str:
    status, spec = job.get("status") or {}, job.get("spec") or {}
    total = spec.get("parallelism") or 1
    if status.get("succeeded") or status.get("failed"):
        return f"{status.get('succeeded') or 0}/{spec.get('completions') or total} done"
    return f"{status.get('ready') or 0}/{total}"


def _path(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _age(obj: Object, now: datetime) -> str:
    created = obj["metadata"].get("creationTimestamp")
    if not created:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _colored(phase: str) -> str:
    color = COLORS.get(phase)
    return f"[{color}]{phase}[/]" if color else phase
