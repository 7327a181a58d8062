"""One part of one try of a task in a new process, as Airflow's task runner calls it.

The arguments are the provider (`ours` or `peer`), the step, and the task as JSON. The process prints one line of JSON:
the modules that the step imported, the CPU time, the trigger or the value with which the step ended, and the XComs.
`benchmarks.task_process` measures the process from outside.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager

try:
    from airflow.sdk.exceptions import TaskDeferred
except ImportError:  # Airflow 3.1. Remove this branch when 3.2 is the oldest supported release.
    from airflow.exceptions import TaskDeferred  # type: ignore[no-redef]

try:
    from airflow.sdk.listener import get_listener_manager
except ImportError:  # Airflow before 3.3. Remove this branch when 3.3 is the oldest supported release.
    from airflow.listeners.listener import get_listener_manager  # type: ignore[no-redef]

IMAGE = "registry.example/train:1"


def operator(who: str, task: dict[str, Any]) -> Any:
    """Import the operator of the provider, and create its task, as the parse of a DAG file does."""
    command = ["sh", "-c", task["script"]]
    if who == "ours":
        from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

        kind, parameters = GangJobOperator, {"workers": 2, "image": IMAGE, "command": command}
    else:
        from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator

        kind, parameters = KubernetesJobOperator, peer_parameters(command, task["namespace"])
    with DAG(dag_id="bench", schedule=None):
        return kind(task_id="train", **parameters)


def peer_parameters(command: list[str], namespace: str) -> dict[str, Any]:
    return {
        "name": "peer",
        "namespace": namespace,
        "image": IMAGE,
        "cmds": command,
        "parallelism": 2,
        "completions": 2,
        "completion_mode": "Indexed",
        "deferrable": True,
        "wait_until_job_complete": True,
        "get_logs": True,
    }


def context_of(task: dict[str, Any], made: Any, pushed: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the try. XComs that the task pushes are stored in `pushed`."""
    ti = SimpleNamespace(
        id=task["claim"],
        dag_id="bench",
        run_id=task["run_id"],
        task_id="train",
        map_index=-1,
        try_number=1,
        max_tries=1,
        start_date=datetime.now(UTC),
        task=made,
        xcom_push=lambda key, value: pushed.__setitem__(key, value),
        get_task_states=lambda **_: {task["run_id"]: {"train": "success"}},
    )
    return {"ti": ti, "task_instance": ti, "task": made, "run_id": task["run_id"], "dag": made.dag}


def run_step(step: str, made: Any, context: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """Run the step, and return what the next step needs."""
    if step == "parse":
        return {}
    try:
        if step == "resume":
            value = made.execute_complete(context, task["event"])
        else:
            value = made.execute(context)
    except TaskDeferred as deferral:
        path, kwargs = deferral.trigger.serialize()
        return {"trigger": {"path": path, "kwargs": kwargs}}
    for callback in made.on_success_callback or ():
        callback(context)
    return {"value": value}


def peak_mb() -> float | None:
    """Return the peak of the resident memory. `getrusage` would count the parent's memory before the exec."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> None:
    who, step, task = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    get_listener_manager()  # the task runner loads the plugins of Airflow before it parses the DAG file
    began_s = time.process_time()
    with _airflow_parsing_context_manager(dag_id="bench", task_id="train"):  # as the task runner does
        made = operator(who, task)
    parsed_s = time.process_time()
    before, pushed = set(sys.modules), {}
    ended = run_step(step, made, context_of(task, made, pushed), task)
    measured = {
        "parse_cpu_s": parsed_s - began_s,
        "step_cpu_s": time.process_time() - parsed_s,
        "modules": sorted(set(sys.modules) - before),
        "peak_mb": peak_mb(),
    }
    print(json.dumps({**ended, **measured, "xcoms": sorted(pushed)}, default=str))


if __name__ == "__main__":
    main()
