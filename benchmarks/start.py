"""Start many gangs at once in one triggerer, on the sandbox: the event loop, the memory, and the parts of a start.

`python -m benchmarks.start [GANGS]`. A process of its own runs the triggers as a triggerer does: it deserializes the
DAG for each task, and then the triggers render, submit, and yield their events.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from benchmarks.harness import ROOT, rss_mb
from benchmarks.loop_watch import LoopWatch

GANGS = 1000
LIMIT_S = 3600.0
CONNECTION = "AIRFLOW_CONN_KUBERNETES_DEFAULT"


def make_dag(gangs: int) -> dict[str, Any]:
    """Return the serialized DAG of a mapped task, as Airflow's database has it."""
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

    with DAG("start", schedule=None) as dag:
        GangJobOperator.partial(
            task_id="gang",
            image="i",
            command=["true"],
            args=["{{ run_id }}"],
            workers=2,
            resources={"cpu": "1000"},
            wait_until="submitted",
            do_xcom_push=False,
            start_from_trigger=True,
        ).expand(env=[{"PART": str(part)} for part in range(gangs)])
    stored: dict[str, Any] = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    return stored


async def run(gangs: int) -> dict[str, Any]:
    """Start the gangs, and return the figures."""
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.taskinstance import uuid7
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import TaskStatesResult
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_provider_gangjobs.triggers.gang_job import GangStartTrigger

    stored, now = make_dag(gangs), datetime.now(UTC)
    states = {"r": {"gang": "deferred"}}
    task_runner.SUPERVISOR_COMMS = SimpleNamespace(  # type: ignore[assignment]
        send=lambda _: TaskStatesResult(task_states=states)
    )
    times = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "run_after", "start_date"), now)
    dag_run = {"dag_id": "start", "run_id": "r", "run_type": "manual", "state": "running", "conf": {}, **times}
    dag_run |= {"consumed_asset_events": [], "clear_number": 0, "partition_key": None, "partition_date": None}
    dag_run |= {"end_date": None}
    start = DagSerialization.from_dict(stored).task_dict["gang"].start_trigger_args.trigger_kwargs["__var"]["start"]
    watch = LoopWatch()
    watch.install()
    ticks = asyncio.create_task(watch.tick())
    began_mb, began, cpu, deserialized_s = rss_mb(collect=True), time.monotonic(), time.process_time(), 0.0
    peak_mb, statuses = began_mb, []

    async def follow(trigger: Any) -> None:
        statuses.extend([event.payload["status"] async for event in trigger.run()])

    tasks = []
    for index in range(gangs):
        await asyncio.sleep(0)  # as a triggerer does before each trigger
        since = time.perf_counter()
        known = {"task_id": "gang", "dag_id": "start", "run_id": "r", "try_number": 1, "map_index": index}
        dto = TaskInstanceDTO(id=uuid7(), dag_version_id=uuid4(), pool_slots=1, priority_weight=1, **known)
        ti = TriggerRunner.create_runtime_ti(dto, stored, dag_run)
        trigger = GangStartTrigger(start=start)
        context = ti.get_template_context()
        trigger.task_instance = ti  # type: ignore[assignment]
        deserialized_s += time.perf_counter() - since
        trigger.render_template_fields(context)
        tasks.append(asyncio.create_task(follow(trigger)))
    created = watch.take()
    async with asyncio.timeout(LIMIT_S):
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.5)
            peak_mb = max(peak_mb, rss_mb())
        await asyncio.gather(*tasks)
    ticks.cancel()
    return {
        "gangs": gangs,
        "statuses": {status: statuses.count(status) for status in set(statuses)},
        "took_s": round(time.monotonic() - began, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "deserialization_ms_of_airflow": round(deserialized_s / gangs * 1000, 1),
        "with_deserialization": created,
        **watch.take(),
        "mb": [round(began_mb), round(peak_mb), round(rss_mb(collect=True))],
    }


def main() -> None:
    """Run the benchmark, or the process under test."""
    if sys.argv[1:2] == ["process"]:
        print(json.dumps(asyncio.run(run(int(sys.argv[2])))))
        return
    from gangjobs_sandbox.cluster import SandboxConfig
    from gangjobs_sandbox.thread import running

    gangs = sys.argv[1] if len(sys.argv) > 1 else str(GANGS)
    with running(SandboxConfig(nodes=1)) as sandbox:
        extra = {"kube_config_path": str(Path(sandbox.kubeconfig_path))}
        environment = os.environ | {CONNECTION: json.dumps({"conn_type": "kubernetes", "extra": extra})}
        command = [sys.executable, "-m", "benchmarks.start", "process", gangs]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    main()
