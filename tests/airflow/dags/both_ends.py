"""Twelve kinds of tasks in two DAGs, which end in the triggerer if they can, and in workers."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, TaskGroup, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

COMMON: dict[str, Any] = {
    "image": "python:3.12-slim",
    "workers": 2,
    "resources": {"cpu": "10m", "memory": "16Mi"},
    "assemble_timeout": timedelta(minutes=30),
    "command": ["sh", "-c", 'echo "said $RANK $WORD"; printf "[%s, 7]" "$RANK" > $GANG_RESULT_PATH'],
    "env": {"WORD": "once"},
}


def note_call(context: Context) -> None:
    """Write the name of the task into a file."""
    with Path(os.environ["AIRFLOW_HOME"], f"called_{context['ti'].dag_id}").open("a") as calls:
        calls.write(f"{context['ti'].task_id}\n")


@task
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@task.gang_job(image="python:3.12-slim", workers=2, resources=COMMON["resources"])
def function(number: int) -> dict[str, int]:
    """Return a dict on each rank."""
    print(f"said {number} function")
    return {"number": number}


for dag_id, ends_here in (("ends_here", True), ("ends_in_workers", False)):
    with DAG(dag_id, schedule=None, default_args={"end_from_trigger": None if ends_here else False}):
        GangJobOperator(task_id="rank_0", **COMMON)
        GangJobOperator(task_id="all", results="all", logs="all", **COMMON)
        GangJobOperator(task_id="none", results="none", logs="none", on_finish="keep", **COMMON)
        GangJobOperator(task_id="no_xcom", do_xcom_push=False, stream_logs=False, **COMMON)
        GangJobOperator(task_id="not_streamed", stream_logs=False, logs="all", **COMMON)
        with TaskGroup("group"):
            GangJobOperator(task_id="inside", **COMMON)
        mapped = {name: value for name, value in COMMON.items() if name != "env"}
        GangJobOperator.partial(task_id="mapped", **mapped).expand(env=[{"WORD": "a"}, {"WORD": "b"}])
        values = GangJobOperator(task_id="mapped_over", **COMMON)
        double.expand(number=values.output)
        function(3)
        GangJobOperator(task_id="outlets", outlets=[Asset("model")], **COMMON)
        GangJobOperator(task_id="callback", on_success_callback=note_call, **COMMON)
        GangJobOperator(task_id="timed", execution_timeout=timedelta(hours=1), retries=2, **COMMON)
