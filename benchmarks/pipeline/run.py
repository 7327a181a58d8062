"""One run of one DAG, and its figures: from Airflow's database, its access log, the audit log, and /proc."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from benchmarks.harness import quantile
from benchmarks.pipeline.deployment import NODES_KIND
from benchmarks.pipeline.processes import BENCHMARK
from benchmarks.pipeline.sizes import TASK_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.pipeline.deployment import Deployment

RUN_MAX_S: Final = 3600.0
POLL_S: Final = 0.5
NOT_MEASURED: Final = (NODES_KIND, BENCHMARK)
"""Kinds of process that belong to the measurement and not to what is measured."""
INDEX_OF_JOB: Final = re.compile(r"\bg-(\d+)-")
"""All variants name their Jobs after the map index of the task."""
ACCESS: Final = re.compile(rb"request finished.*?\bpath=\S*/execution/")
CONTROLLERS: Final = "admin"
"""The account of the control plane's own components."""


@dataclass(frozen=True)
class _Mark:
    """The counters at one moment."""

    cpu_s: dict[str, float]
    access_bytes: int
    audit_bytes: int

    @classmethod
    def of(cls, deployment: Deployment) -> _Mark:
        sizes = (path.stat().st_size for path in (deployment.access_log, deployment.plane.audit_log))
        return cls(deployment.processes.cpu_s(), *sizes)


def measure(deployment: Deployment, dag_id: str, gangs: int, *, failures_max: int = 0) -> dict[str, float]:
    """Run the DAG once, and return the figures of the run.

    :param failures_max: How many tasks may fail, which the figures say.

    Raises:
        RuntimeError: more tasks failed, with the log of one of them.
        TimeoutError: the run took longer than `RUN_MAX_S`.
    """
    run_id = f"benchmark-{secrets.token_hex(4)}"
    before = _Mark.of(deployment)
    deployment.airflow.api.trigger(dag_id, run_id)
    wall_s = _wait(deployment, dag_id, run_id)
    failures = _failed_tasks(deployment, dag_id, run_id)
    if failures > failures_max:
        raise RuntimeError(f"{failures} tasks of {dag_id} failed:\n{_failure(deployment.home.path, dag_id)}")
    after = _Mark.of(deployment)
    return {
        "wall_s": wall_s,
        "failed_tasks": failures,
        **_cpu(before, after, gangs),
        "airflow_requests_per_gang": _airflow_requests(deployment.access_log, before.access_bytes) / gangs,
        "kubernetes_requests_per_gang": _kubernetes_requests(deployment, before) / gangs,
        **_latencies(deployment, before, dag_id, run_id),
    }


def _wait(deployment: Deployment, dag_id: str, run_id: str) -> float:
    """Wait for the end of the run, and return the seconds from the request to the end."""
    deadline = time.monotonic() + RUN_MAX_S
    statement = "SELECT state, queued_at, end_date FROM dag_run WHERE dag_id = %s AND run_id = %s"
    while time.monotonic() < deadline:
        ((state, queued_at, end_date),) = deployment.rows(statement, dag_id, run_id)
        if state in ("success", "failed"):
            return float((end_date - queued_at).total_seconds())
        time.sleep(POLL_S)
    raise TimeoutError(f"a run of {dag_id} took longer than {RUN_MAX_S:g} s")


def _failed_tasks(deployment: Deployment, dag_id: str, run_id: str) -> int:
    statement = "SELECT count(*) FROM task_instance WHERE dag_id = %s AND run_id = %s AND state <> 'success'"
    ((failures,),) = deployment.rows(statement, dag_id, run_id)
    return int(failures)


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
    }


def _kubernetes_requests(deployment: Deployment, before: _Mark) -> int:
    """Return the number of requests of Airflow's processes to the Kubernetes API server."""
    events = deployment.plane.audited(from_byte=before.audit_bytes)
    return sum(event["user"]["username"] == deployment.tenant.user for event in events)


def _airflow_requests(log: Path, from_byte: int) -> int:
    """Return the number of requests of task processes to Airflow's API server."""
    with log.open("rb") as file:
        file.seek(from_byte)
        return sum(ACCESS.search(line) is not None for line in file)


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
