"""The dashboard of a cluster: nodes, Jobs and pods as tables that fit the terminal.

The tables count the rows that do not fit. Pods that are pending or have failed come first. Long names lose their
middle, because the names of one Job's pods differ only at the end.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gangjobs_sandbox.apimachinery.quantity import ResourceList, format_bytes, format_cpu, parse_list, requests_of
from gangjobs_sandbox.cli.summary import (
    COLORS,
    Object,
    Snapshot,
    job_phase,
    node_phase,
    path_of,
    pod_phase,
    progress_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

__all__ = ["tables"]

HEAD_LINES = 2
"""The lines of a table above its rows: the names of the columns, and a rule."""
FRAME_LINES = 3 * HEAD_LINES + 4
"""The lines that are not rows: the heads, two empty lines, the sum of the pods, and the line of the cursor."""
ROWS_MIN = 2
"""The minimum number of rows of a table."""
LAST_PHASES = ("Running", "Succeeded")
"""The phases of the pods that are shown last, in this order. All other pods are waiting or have failed."""


def tables(snapshot: Snapshot) -> RenderableType:
    """Return the tables of nodes, Jobs and pods, which together fit the height of the terminal."""
    return _Dashboard(snapshot)


@dataclass(frozen=True)
class _Dashboard:
    snapshot: Snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        seen = self.snapshot
        counts = [len(seen.nodes), max(len(seen.jobs), 1), max(len(seen.pods), 1)]
        nodes, jobs, pods = share_rows(counts, max(options.size.height - FRAME_LINES, 0))
        yield Group(
            _nodes_table(seen, nodes), "", _jobs_table(seen, jobs), "", _pods_table(seen, pods), _sum_of_pods(seen.pods)
        )


def share_rows(wanted: Sequence[int], room: int) -> list[int]:
    """Return the number of rows of each table.

    Tables that need less than an equal share leave the rest to the others.
    """
    given = [0] * len(wanted)
    left = max(room, ROWS_MIN * len(wanted))
    for place, position in enumerate(sorted(range(len(wanted)), key=lambda position: wanted[position])):
        given[position] = min(wanted[position], left // (len(wanted) - place))
        left -= given[position]
    return given


def cut_middle(name: str, width: int) -> str:
    """Return the name in at most `width` characters. A longer name loses its middle."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


class _Name:
    """A name that is cut to the width of its column."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(cut_middle(self._name, options.max_width), no_wrap=True)


def _nodes_table(snapshot: Snapshot, rows: int) -> Table:
    table = _table("node", "state", "pods", "cpu", "memory", "gpu")
    counts, used = _usage_by_node(snapshot.pods)
    shown, hidden = _fitting(snapshot.nodes, rows)
    for node in shown:
        name = node["metadata"]["name"]
        allocatable = parse_list((node.get("status") or {}).get("allocatable"))
        amounts = [
            _share(used.get(name, {}), allocatable, resource) for resource in ("cpu", "memory", "nvidia.com/gpu")
        ]
        table.add_row(_Name(name), node_phase(node), str(counts[name]), *amounts)
    return _with_rest(table, hidden)


def _jobs_table(snapshot: Snapshot, rows: int) -> Table:
    table = _table("job", "phase", "ready", "age")
    newest_first = sorted(snapshot.jobs, key=_creation, reverse=True)
    shown, hidden = _fitting(newest_first, rows)
    for job in reversed(shown):
        table.add_row(_Name(path_of(job)), _colored(job_phase(job)), progress_of(job), _age(job, snapshot.now))
    if not snapshot.jobs:
        table.add_row("no jobs yet")
    return _with_rest(table, hidden)


def _pods_table(snapshot: Snapshot, rows: int) -> Table:
    table = _table("pod", "phase", "node", "age")
    count = rows if len(snapshot.pods) <= rows else rows - 1
    for pod in heapq.nsmallest(count, snapshot.pods, key=_pod_order):
        node = (pod.get("spec") or {}).get("nodeName") or "-"
        table.add_row(_Name(path_of(pod)), _colored(pod_phase(pod)), node, _age(pod, snapshot.now))
    if not snapshot.pods:
        table.add_row("no pods yet")
    return _with_rest(table, len(snapshot.pods) - count)


def _sum_of_pods(pods: Sequence[Object]) -> Text:
    phases = Counter(pod_phase(pod) for pod in pods)
    return Text(", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())), style="dim")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=True)
    for column in columns:
        table.add_column(column, no_wrap=True, ratio=3 if column in {"job", "pod"} else 1)
    return table


def _fitting(objects: Sequence[Object], rows: int) -> tuple[Sequence[Object], int]:
    """Return the objects to show, and the number of hidden objects. The line with that number is one of the rows."""
    if len(objects) <= rows:
        return objects, 0
    return objects[: rows - 1], len(objects) - rows + 1


def _with_rest(table: Table, hidden: int) -> Table:
    if hidden > 0:
        table.add_row(Text(f"… {hidden} more", style="dim"))
    return table


def _creation(obj: Object) -> tuple[str, str]:
    return str(obj["metadata"].get("creationTimestamp")), obj["metadata"]["name"]


def _pod_order(pod: Object) -> tuple[int, str, str]:
    """Return the sort key of a pod: pods that wait or have failed come first, then creation time and name."""
    phase = pod_phase(pod)
    position = LAST_PHASES.index(phase) + 1 if phase in LAST_PHASES else 0
    return position, *_creation(pod)


def _usage_by_node(pods: Iterable[Object]) -> tuple[Counter[str], dict[str, ResourceList]]:
    """Return the number of pods that use resources of each node, and the sum of their requests by node.

    The pods of a gang have equal requests, so each distinct request is parsed once and multiplied.
    """
    counts: Counter[str] = Counter()
    counts_by_request: Counter[tuple[str, str]] = Counter()
    requests: dict[str, ResourceList] = {}
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        node = spec.get("nodeName")
        if node is None or status.get("phase") in {"Succeeded", "Failed"}:
            continue
        containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        key = repr([(one.get("resources"), one.get("restartPolicy")) for one in containers])
        if key not in requests:
            requests[key] = requests_of(spec)
        counts[node] += 1
        counts_by_request[node, key] += 1
    used: dict[str, ResourceList] = {}
    for (node, key), count in counts_by_request.items():
        total = used.setdefault(node, {})
        for resource, amount in requests[key].items():
            total[resource] = total.get(resource, Decimal(0)) + amount * count
    return counts, used


def _share(used: Mapping[str, Decimal], allocatable: Mapping[str, Decimal], resource: str) -> str:
    if resource not in allocatable:
        return "-"
    text = format_bytes if resource == "memory" else format_cpu
    return f"{text(used[resource]) if used.get(resource) else 0} / {text(allocatable[resource])}"


def _age(obj: Object, now: datetime) -> str:
    created = obj["metadata"].get("creationTimestamp")
    if not created:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _colored(phase: str) -> Text:
    return Text(phase, style=COLORS.get(phase, ""))
