"""One run of one DAG, and its figures: from Airflow's database, its access log, the audit log, and /proc."""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import median, quantile
from benchmarks.pipeline.deployment import NODES_KIND
from benchmarks.pipeline.processes import BENCHMARK, TaskMemory, machine_cpu_s
from benchmarks.pipeline.sizes import TASK_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from benchmarks.pipeline.deployment import Deployment

RUN_MAX_S: Final = 3600.0
POLL_S: Final = 0.5
NOT_MEASURED: Final = (NODES_KIND, BENCHMARK)
"""Kinds of process that belong to the measurement and not to what is measured."""
INDEX_OF_JOB: Final = re.compile(r"\bg-(\d+)-")
"""All variants name their Jobs after the map index of the task."""
ACCESS: Final = re.compile(rb"request finished.*?\bpath=(\S+)")
CONTROLLERS: Final = "admin"
"""The account of the control plane's own components."""


@dataclass(frozen=True)
class _Mark:
    """The counters at one moment."""

    cpu_s: dict[str, float]
    machine_s: float
    access_bytes: int
    audit_bytes: int

    @classmethod
    def of(cls, deployment: Deployment) -> _Mark:
        sizes = (path.stat().st_size for path in (deployment.access_log, deployment.plane.audit_log))
        return cls(deployment.processes.cpu_s(), machine_cpu_s(), *sizes)


@dataclass(frozen=True)
class Run:
    """The figures of one run."""

    figures: dict[str, float]
    kubernetes_requests: dict[str, float]
    """Requests of Airflow's processes to the Kubernetes API server for each gang, by verb and resource."""
    airflow_requests: dict[str, float]
    """Requests to Airflow's API server for each gang, by path."""


def measure(deployment: Deployment, dag_id: str, gangs: int) -> Run:
    """Run the DAG once.

    Raises:
        RuntimeError: the run failed, with the log of one failed task.
        TimeoutError: the run took longer than `RUN_MAX_S`.
    """
    run_id = f"benchmark-{secrets.token_hex(4)}"
    before = _Mark.of(deployment)
    with TaskMemory(deployment.processes.workers) as memory:
        deployment.airflow.api.trigger(dag_id, run_id)
        wall_s = _wait(deployment, dag_id, run_id)
    after = _Mark.of(deployment)
    kubernetes = _kubernetes_requests(deployment, before)
    airflow = _airflow_requests(deployment.access_log, before.access_bytes)
    figures = {
        "wall_s": wall_s,
        **_cpu(before, after, gangs),
        "task_peak_mb": median(memory.peaks_mb),
        "task_peak_mb_max": max(memory.peaks_mb),
        "task_processes": float(len(memory.peaks_mb)),
        "airflow_requests_per_gang": airflow.total() / gangs,
        "kubernetes_requests_per_gang": kubernetes.total() / gangs,
        **_latencies(deployment, before, dag_id, run_id),
    }
    return Run(figures, _each(kubernetes, gangs), _each(airflow, gangs))


def _wait(deployment: Deployment, dag_id: str, run_id: str) -> float:
    """Wait for the end of the run, and return the seconds from the request to the end."""
    deadline = time.monotonic() + RUN_MAX_S
    statement = "SELECT state, queued_at, end_date FROM dag_run WHERE dag_id = %s AND run_id = %s"
    while time.monotonic() < deadline:
        ((state, queued_at, end_date),) = deployment.rows(statement, dag_id, run_id)
        if state == "success":
            return float((end_date - queued_at).total_seconds())
        if state == "failed":
            raise RuntimeError(f"a run of {dag_id} failed:\n{_failure(deployment.home.path, dag_id)}")
        time.sleep(POLL_S)
    raise TimeoutError(f"a run of {dag_id} took longer than {RUN_MAX_S:g} s")


def _failure(home: Path, dag_id: str) -> str:
    """Return the end of the log of one failed task."""
    logs = (file.read_text(errors="replace") for file in (home / "logs" / f"dag_id={dag_id}").rglob("*.log"))
    return next((log for log in logs if '"level":"error"' in log), "no log of a task has an error")[-6000:]


def _cpu(before: _Mark, after: _Mark, gangs: int) -> dict[str, float]:
    used = {kind: after.cpu_s[kind] - before.cpu_s.get(kind, 0.0) for kind in after.cpu_s}
    total = sum(seconds for kind, seconds in used.items() if kind not in NOT_MEASURED)
    return {
        "cpu_s": total,
        "cpu_s_per_gang": total / gangs,
        **{f"cpu_s_{kind}": seconds for kind, seconds in sorted(used.items())},
        "cpu_counted_share": sum(used.values()) / (after.machine_s - before.machine_s),
    }


def _kubernetes_requests(deployment: Deployment, before: _Mark) -> Counter[str]:
    return Counter(
        _request(event)
        for event in deployment.plane.audited(from_byte=before.audit_bytes)
        if event["user"]["username"] == deployment.tenant.user
    )


def _request(event: Mapping[str, Any]) -> str:
    """Return verb and resource, such as `create jobs` or `get pods/log`."""
    of = event.get("objectRef", {})
    resource = "/".join(
        filter(None, (of.get("resource", event["requestURI"].partition("?")[0]), of.get("subresource")))
    )
    return f"{event['verb']} {resource}"


def _airflow_requests(log: Path, from_byte: int) -> Counter[str]:
    with log.open("rb") as file:
        file.seek(from_byte)
        paths = (found[1].decode() for line in file if (found := ACCESS.search(line)))
        return Counter(_without_ids(path) for path in paths if "/execution/" in path)


def _without_ids(path: str) -> str:
    """Return the path without its ids and names."""
    parts = path.partition("/execution/")[2].split("/")
    return "/".join(part for part in parts if not re.search(r"\d", part))[:60]


def _each(counts: Counter[str], gangs: int) -> dict[str, float]:
    return {what: round(number / gangs, 2) for what, number in counts.most_common()}


def _latencies(deployment: Deployment, before: _Mark, dag_id: str, run_id: str) -> dict[str, float]:
    """Return the seconds from the start of a task to its Job, and from the end of a gang to the end of its task."""
    statement = "SELECT map_index, start_date, end_date FROM task_instance WHERE dag_id = %s AND run_id = %s"
    tasks = {
        index: (start, end)
        for index, start, end in deployment.rows(f"{statement} AND task_id = %s", dag_id, run_id, TASK_ID)
    }
    created, ended = _jobs(deployment, before)
    to_job = [(created[index] - start).total_seconds() for index, (start, _) in tasks.items() if index in created]
    to_end = [(end - ended[index]).total_seconds() for index, (_, end) in tasks.items() if index in ended]
    return {
        **dict(_spread("slot_to_job_s", to_job)),
        **dict(_spread("gang_end_to_task_end_s", to_end)),
    }


def _spread(name: str, values: list[float]) -> Iterator[tuple[str, float]]:
    if values:
        yield f"{name}_p50", quantile(values, 0.5)
        yield f"{name}_p95", quantile(values, 0.95)


def _jobs(deployment: Deployment, before: _Mark) -> tuple[dict[int, datetime], dict[int, datetime]]:
    """Return when the API server created each Job, and when the Job controller wrote its status for the last time.

    The times of the objects themselves have whole seconds, so the times come from the audit log.
    """
    created: dict[int, datetime] = {}
    ended: dict[int, datetime] = {}
    for event in deployment.plane.audited(from_byte=before.audit_bytes):
        of = event.get("objectRef", {})
        found = INDEX_OF_JOB.search(of.get("name", "")) if of.get("resource") == "jobs" else None
        if found is None or event["responseStatus"]["code"] >= 400:
            continue
        at = datetime.fromisoformat(event["stageTimestamp"])
        if event["verb"] == "create":
            created.setdefault(int(found[1]), at)
        elif of.get("subresource") == "status" and event["user"]["username"] == CONTROLLERS:
            ended[int(found[1])] = at
    return created, ended
