"""The cost of the process of a task, in new processes: submit a gang, adopt a gang, and resume at the end of a gang.

A real control plane with nodes runs the gangs: two ranks that print a line and write a result. Each process is measured
as a whole from outside: the CPU time of user and system, and the requests in the audit log of the API server. The
process itself measures the CPU time of two parts: the parse of the DAG file (the import and the creation of the
operator, after Airflow was imported), and the step. The trigger runs in the process of the benchmark, which is not
measured. The contenders run in turns.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from airflow_provider_gangjobs.cluster.informer import informers
from benchmarks.api_server import airflow_environment, allow_all, control_plane, requests_of
from benchmarks.harness import ROOT, Report, Rounds, arguments, run_python
from tests.cluster.node_pool import NodePool
from tests.cluster.tenant import Tenant

RELEASE: Final = "1.37"
CHILD: Final = ROOT / "benchmarks" / "task_process_child.py"
SCRIPT: Final = 'echo rank $RANK begins; [ -z "$GANG_RESULT_PATH" ] || echo "{}" > "$GANG_RESULT_PATH"; echo ends'
STEPS: Final = {
    "gangjobs": ("parse", "submit", "adopt", "resume"),
    "cncf": ("parse", "submit", "resume"),
}
GOALS_CPU_S: Final = {"submit": 0.3, "resume": 0.2}
AUDIT_DELAY_S: Final = 0.3
"""The API server writes its audit log a moment after the response."""


def run_process(tenant: Tenant, who: str, step: str, task: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Run one process of a task, and return its figures and the JSON that it printed.

    Most of `process_cpu_s` is the import of Airflow. `modules` is how many modules the step imported.
    """
    since = datetime.now(UTC)
    done = run_python("-P", CHILD, "peer" if who == "cncf" else "ours", step, json.dumps(task))
    until, printed = datetime.now(UTC), done.json()
    time.sleep(AUDIT_DELAY_S)
    measured = {
        "process_cpu_s": done.cpu_s,
        "parse_cpu_s": printed["parse_cpu_s"],
        "step_cpu_s": printed["step_cpu_s"],
        "wall_s": done.wall_s,
        "peak_mb": printed["peak_mb"] or 0.0,
        "modules": len(printed["modules"]),
        "requests": requests_of(tenant, since, until),
    }
    return measured, printed


def run_trigger(path: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Run the trigger of a deferral until its event, and return the payload as the resumed task gets it."""
    module, name = path.rsplit(".", 1)
    trigger = getattr(importlib.import_module(module), name)(**kwargs)

    async def first() -> Any:
        try:
            return await anext(event.payload async for event in trigger.run())
        finally:
            await informers().aclose()

    event: dict[str, Any] = json.loads(json.dumps(asyncio.run(first()), default=str))
    return event


def run_task(tenant: Tenant, who: str) -> dict[str, float]:
    """Run all processes of a new task, from the parse of its DAG file to its end. Return the figures of each step."""
    task: dict[str, Any] = {
        "run_id": uuid4().hex,
        "claim": str(uuid4()),
        "script": SCRIPT,
        "namespace": tenant.namespace,
    }
    figures: dict[str, float] = {}
    trigger: dict[str, Any] = {}
    for step in STEPS[who]:
        if step == "resume":
            task["event"] = run_trigger(**trigger)
        measured, printed = run_process(tenant, who, step, task)
        figures |= {f"{step}: {name}": value for name, value in measured.items()}
        trigger = printed.get("trigger", trigger)
    return figures


def main() -> None:
    options = arguments(__doc__, runs=(9, 3))
    report = Report(
        f"task_process: new processes of a task on Kubernetes {RELEASE}, gangs of two, {options.runs} runs in turns",
        "the process that only parses its DAG file",
    )
    rounds = Rounds()
    with (
        control_plane(RELEASE) as plane,
        NodePool.running(plane, nodes=2, cpu=4),
        Tenant.created(plane, "task") as tenant,
    ):
        allow_all(tenant)
        os.environ.update(airflow_environment(tenant.extras))
        run = partial(run_task, tenant)
        for who in STEPS:  # The first processes compile modules.
            run(who)
        rounds.measure(options.runs, tuple(STEPS), run)
    for who in STEPS:
        report.add(who=who, **rounds.medians(who))
    goals = ", ".join(f"{step} {cpu_s} s" for step, cpu_s in GOALS_CPU_S.items())
    report.notes.append(f"Goals for step_cpu_s: {goals}.")
    report.notes.append("The peer returns no results, because its results need a sidecar container in each pod.")
    report.publish(options.out)


if __name__ == "__main__":
    main()
