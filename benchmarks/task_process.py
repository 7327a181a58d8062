"""What the process of a task costs, in fresh processes: to submit a gang, to adopt one, and to resume at its end.

A real control plane with nodes runs the gangs: two ranks that print a line and write a result. Each process is measured
whole, from outside: CPU time of user and system, peak memory, and the requests in the audit log of the API server. The
process that only parses the DAG file (imports Airflow and the operator, and creates the operator) is the base of all
others. The trigger runs in the process of the benchmark, which is not measured. The peer's processes run by turns.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from airflow_provider_gangjobs.cluster.informer import informers
from benchmarks.api_server import airflow_environment, allow_all, control_plane, requests_of, tenant_of
from benchmarks.harness import ROOT, Report, arguments, log_progress, median, with_bytecode
from tests.cluster.node_pool import NodePool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.tenant import Tenant

RELEASE: Final = "1.37"
RUNS: Final = 9
CHILD: Final = ROOT / "benchmarks" / "task_process_child.py"
SCRIPT: Final = 'echo rank $RANK begins; [ -z "$GANG_RESULT_PATH" ] || echo "{}" > "$GANG_RESULT_PATH"; echo ends'
STEPS: Final = {
    "gangjobs": ("parse", "submit", "adopt", "resume"),
    "before": ("parse", "submit", "adopt", "resume"),
    "cncf": ("parse", "submit", "resume"),
}
GOALS_CPU_S: Final = {"submit": 0.3, "resume": 0.2}
AUDIT_DELAY_S: Final = 0.3
"""The API server writes its audit log a moment after the response."""


@dataclass(frozen=True)
class Measured:
    """One process."""

    cpu_s: float
    """The CPU time of the whole process."""
    step_cpu_s: float
    """The CPU time of the step alone: without the parse, and without the end of the process."""
    wall_s: float
    peak_mb: float
    modules: int
    requests: int


@dataclass
class World:
    """Where the processes run, and what they find there."""

    tenant: Tenant
    environment: dict[str, str]
    before: Path | None
    """A checkout of another commit of the provider."""

    def run(self, who: str, step: str, task: dict[str, Any]) -> tuple[Measured, dict[str, Any]]:
        """Run one process of a task. Returns what it cost, and what it printed."""
        environment = dict(self.environment)
        if who == "before":
            environment["PYTHONPATH"] = str(self.before)
        operator = "peer" if who == "cncf" else "ours"
        since, began = datetime.now(UTC), time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD), operator, step, json.dumps(task)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s, until = time.perf_counter() - began, datetime.now(UTC)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{who}, {step}: the process ended with {process.returncode}")
        printed = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
        time.sleep(AUDIT_DELAY_S)
        requests = requests_of(self.tenant, since, until)
        cpu_s, peak_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        return Measured(cpu_s, printed["cpu_s"], wall_s, peak_mb, len(printed["modules"]), requests), printed


def run_trigger(path: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Run the trigger of a deferral to its event, and return the payload as the resumed task gets it."""
    module, name = path.rsplit(".", 1)
    trigger = getattr(importlib.import_module(module), name)(**kwargs)

    async def first() -> Any:
        try:
            return await anext(event.payload async for event in trigger.run())
        finally:
            await informers().aclose()

    event: dict[str, Any] = json.loads(json.dumps(asyncio.run(first()), default=str))
    return event


def run_task(world: World, who: str) -> dict[str, Measured]:
    """Run all processes of one task of its own, from its parse to its end."""
    task: dict[str, Any] = {
        "run_id": uuid4().hex,
        "claim": str(uuid4()),
        "script": SCRIPT,
        "namespace": world.tenant.namespace,
    }
    measured: dict[str, Measured] = {}
    trigger: dict[str, Any] = {}
    for step in STEPS[who]:
        if step == "resume":
            task["event"] = run_trigger(**trigger)
        measured[step], printed = world.run(who, step, task)
        trigger = printed.get("trigger", trigger)
    return measured


def measure(world: World, runs: int) -> dict[str, list[dict[str, Measured]]]:
    contenders = ["gangjobs", "cncf", *(["before"] if world.before else [])]
    for who in contenders:  # The first processes compile modules.
        run_task(world, who)
    taken: dict[str, list[dict[str, Measured]]] = {who: [] for who in contenders}
    for run in range(runs):
        for who in contenders:
            log_progress(f"run {run + 1} of {runs}: {who}")
            taken[who].append(run_task(world, who))
    return taken


def report_of(taken: dict[str, list[dict[str, Measured]]], runs: int) -> Report:
    report = Report(
        f"task_process: fresh processes of a task on Kubernetes {RELEASE}, gangs of two, {runs} runs by turns",
        "the same process that only parses its DAG file (the step parse)",
    )
    for who, tasks in taken.items():
        base_s = median(task["parse"].cpu_s for task in tasks)
        for step in STEPS[who]:
            results = [task[step] for task in tasks]
            cpu_s = median(one.cpu_s for one in results)
            report.add(
                who=f"{who} {step}",
                cpu_s=round(cpu_s, 3),
                cpu_s_over_parse=round(cpu_s - base_s, 3),
                step_cpu_s=round(median(one.step_cpu_s for one in results), 3),
                best_step_cpu_s=round(min(one.step_cpu_s for one in results), 3),
                wall_s=round(median(one.wall_s for one in results), 2),
                peak_mb=round(median(one.peak_mb for one in results)),
                modules_over_parse=results[-1].modules,
                requests=round(median(one.requests for one in results)),
            )
    goals = ", ".join(f"{step} {cpu_s} s" for step, cpu_s in GOALS_CPU_S.items())
    report.notes.append(f"Goals, CPU over parse: {goals}.")
    report.notes.append("The peer returns no results, because its results need a sidecar container in each pod.")
    return report


def main() -> None:
    options = arguments(__doc__, paths=("before",), runs=RUNS)
    runs = options.runs or (3 if options.quick else RUNS)
    with (
        control_plane(RELEASE) as plane,
        NodePool.running(plane, nodes=2, cpu=4),
        tenant_of(plane, "task") as tenant,
    ):
        allow_all(tenant)
        environment = with_bytecode(os.environ | airflow_environment(tenant))
        os.environ.update(environment)
        taken = measure(World(tenant, environment, options.before), runs)
    report_of(taken, runs).publish(options.out)


if __name__ == "__main__":
    main()
