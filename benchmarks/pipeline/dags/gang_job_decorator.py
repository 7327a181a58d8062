"""Mapped gangs of two with `@task.gang_job`."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from benchmarks.pipeline.sizes import TASK_ID, sizes

for dag_id, gangs in sizes("gang_job_decorator").items():
    with DAG(dag_id, schedule=None):

        @task.gang_job(
            task_id=TASK_ID,
            name="g-{{ ti.map_index }}",
            image="registry.example/train:1",
            workers=2,
            resources={"cpu": "10m", "memory": "16Mi"},
            logs="all",
        )
        def train(number: int) -> dict[str, Any]:
            """The hollow nodes do not run this function. They write a result of this form."""
            return {"accuracy": number / 100}

        train.expand(number=list(range(gangs)))
