"""Start many gangs at once in one triggerer: the event loop, the memory, and the parts of a start.

`python -m benchmarks.start` runs on the sandbox, where no gang gets a node, and each task ends with the
submission. The gangs are those of mapped tasks, or with `--wide` those of as many tasks of one DAG. With `--to-end` a
real control plane has hollow nodes, on which pods run for two seconds, and the triggers follow their gangs, and end and
deliver them. No worker process takes part.

A process of its own runs the triggers as a triggerer does: it deserializes the DAG for each task, and then the triggers
render, submit, and yield their events. Airflow's supervisor, which stores XComs and states, answers at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from benchmarks.harness import arguments, log_progress, print_json, rss_mb, run_python
from benchmarks.loop_watch import LoopWatch

if TYPE_CHECKING:
    from collections.abc import Mapping

MAPPED_MAX = 1000
"""How many gangs a DAG has at most. Airflow expands a task into at most 1,024 (`[core] max_map_length`)."""
NODES = 8
PODS_RUN_S = 2.0
LIMIT_S = 7200.0
SAY_EVERY_S = 30.0


class Supervisor:
    """The supervisor of the triggerer, with the states of the tasks of each DAG."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, str]] = {}
        self.requests = 0

    def send(self, message: Any) -> Any:
        """Answer a question for states."""
        from airflow.sdk.execution_time.comms import TaskStatesResult

        self.requests += 1
        states = self.states[message.dag_id]
        if message.map_index is None:
            names = [*states]
        else:
            names = message.task_ids if message.map_index < 0 else [f"gang_{message.map_index}"]
        return TaskStatesResult(task_states={"r": {name: states[name] for name in names}})

    async def asend(self, message: Any) -> None:
        """Store an XCom."""
        self.requests += 1


def make_dag(dag_id: str, gangs: int, *, to_end: bool, wide: bool) -> dict[str, Any]:
    """Return the serialized DAG of a mapped task, or of as many tasks, as Airflow's database has it."""
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

    common: dict[str, Any] = {"image": "i", "command": ["true"], "args": ["{{ run_id }}"], "workers": 2}
    common |= {"start_from_trigger": True, **(TO_END if to_end else SUBMITTED)}
    parts = [{"PART": str(part)} for part in range(gangs)]
    with DAG(dag_id, schedule=None) as dag:
        if not wide:
            GangJobOperator.partial(task_id="gang", **common).expand(env=parts)
        for index, part in enumerate(parts if wide else ()):
            GangJobOperator(task_id=f"gang_{index}", env=part, **common)
    stored: dict[str, Any] = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    return stored


SUBMITTED: dict[str, Any] = {"resources": {"cpu": "1000"}, "wait_until": "submitted", "do_xcom_push": False}
TO_END: dict[str, Any] = {"resources": {"cpu": "1m", "memory": "1Mi"}}


async def run(gangs: int, *, to_end: bool, wide: bool) -> dict[str, Any]:
    """Start the gangs, and return the figures."""
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.taskinstance import uuid7
    from airflow.sdk.execution_time import task_runner
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.triggers.base import TaskSuccessEvent

    from airflow_provider_gangjobs.triggers.gang_job import GangStartTrigger

    now, supervisor = datetime.now(UTC), Supervisor()
    dags: dict[str, dict[str, Any]] = {}
    for first in range(0, gangs, MAPPED_MAX):
        mapped = min(gangs - first, MAPPED_MAX)
        dags[f"start_{first}"] = make_dag(f"start_{first}", mapped, to_end=to_end, wide=wide)
        supervisor.states[f"start_{first}"] = {f"gang_{index}": "deferred" for index in range(mapped)}
    task_runner.SUPERVISOR_COMMS = supervisor  # type: ignore[assignment]
    times = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "run_after", "start_date"), now)
    dag_run = {"run_id": "r", "run_type": "manual", "state": "running", "conf": {}, **times}
    dag_run |= {"consumed_asset_events": [], "clear_number": 0, "partition_key": None, "partition_date": None}
    dag_run |= {"end_date": None}
    tasks_of_dag = DagSerialization.from_dict(dags["start_0"]).task_dict
    starts = {name: task.start_trigger_args.trigger_kwargs["__var"]["start"] for name, task in tasks_of_dag.items()}
    watch = LoopWatch()
    watch.install()
    ticks = asyncio.create_task(watch.tick())
    began_mb, began, cpu, deserialized_s = rss_mb(collect=True), time.monotonic(), time.process_time(), 0.0
    peak_mb, statuses = began_mb, []

    async def follow(trigger: Any, dag_id: str, index: int) -> None:
        async for event in trigger.run():
            if isinstance(event, TaskSuccessEvent):
                supervisor.states[dag_id][f"gang_{index}"] = "success"
                statuses.append("ended")
            else:
                statuses.append(event.payload["status"])

    tasks = []
    places = [(dag_id, index) for dag_id, states in supervisor.states.items() for index in range(len(states))]
    for dag_id, index in places:
        await asyncio.sleep(0)  # as a triggerer does before each trigger
        since = time.perf_counter()
        name, map_index = (f"gang_{index}", -1) if wide else ("gang", index)
        known = {"task_id": name, "dag_id": dag_id, "run_id": "r", "try_number": 1, "map_index": map_index}
        dto = TaskInstanceDTO(id=uuid7(), dag_version_id=uuid4(), pool_slots=1, priority_weight=1, **known)
        ti = TriggerRunner.create_runtime_ti(dto, dags[dag_id], {"dag_id": dag_id, **dag_run})
        trigger = GangStartTrigger(start=starts[name])
        context = ti.get_template_context()
        trigger.task_instance = ti  # type: ignore[assignment]
        deserialized_s += time.perf_counter() - since
        trigger.render_template_fields(context)
        tasks.append(asyncio.create_task(follow(trigger, dag_id, index)))
    created, said = watch.take(), time.monotonic()
    async with asyncio.timeout(LIMIT_S):
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.5)
            peak_mb = max(peak_mb, rss_mb())
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                log_progress(f"{len(statuses):,} of {gangs:,} tasks have ended; {peak_mb:.0f} MB at most")
        await asyncio.gather(*tasks)
        took_s = time.monotonic() - began
        deliveries = [task for task in asyncio.all_tasks() if task.get_name().startswith("delivery of")]
        await asyncio.gather(*deliveries)
    ticks.cancel()
    return {
        "gangs": gangs,
        "statuses": {status: statuses.count(status) for status in set(statuses)},
        "took_s": round(took_s, 1),
        "delivered_after_s": round(time.monotonic() - began, 1),
        "requests_to_airflow": supervisor.requests,
        "cpu_s": round(time.process_time() - cpu, 1),
        "deserialization_ms_of_airflow": round(deserialized_s / gangs * 1000, 1),
        "with_deserialization": created,
        **watch.take(),
        "mb": [round(began_mb), round(peak_mb), round(rss_mb(collect=True))],
    }


def main() -> None:
    """Run the benchmark, or the process under test."""
    switches = {
        "to-end": "the gangs run and end, on a real control plane",
        "wide": "each gang has a task of its own in one DAG",
        "process": "be the process under test",
    }
    options = arguments(__doc__, switches=switches, gangs=(1000, 100))
    if options.process:
        print_json(**asyncio.run(run(options.gangs, to_end=options.to_end, wide=options.wide)))
        return
    passed_on = ["--wide"] * options.wide
    if options.to_end:
        _on_control_plane(options.gangs, *passed_on)
    else:
        _on_sandbox(options.gangs, *passed_on)


def _on_sandbox(gangs: int, *options: str) -> None:
    from gangjobs_sandbox.cluster import SandboxConfig
    from gangjobs_sandbox.thread import running

    with running(SandboxConfig(nodes=1)) as sandbox:
        _run_process(gangs, {"kube_config_path": str(sandbox.kubeconfig_path)}, *options)


def _on_control_plane(gangs: int, *options: str) -> None:
    from benchmarks.api_server import allow_all, control_plane, hollow_nodes
    from tests.cluster.tenant import Tenant

    with control_plane() as plane, Tenant.created(plane, "start") as tenant:
        allow_all(tenant)
        with hollow_nodes(plane, NODES, lasts_s=PODS_RUN_S):
            _run_process(gangs, tenant.extras, "--to-end", *options)


def _run_process(gangs: int, extras: Mapping[str, str], *options: str) -> None:
    from benchmarks.api_server import airflow_environment

    command = ("-m", "benchmarks.start", "--process", "--gangs", gangs, *options)
    print_json(**run_python(*command, environment=airflow_environment(extras)).json())


if __name__ == "__main__":
    main()
