"""Mapped tasks that do nothing: as many as the task processes of the gangs."""

from __future__ import annotations

from airflow.sdk import DAG, task

from benchmarks.pipeline.sizes import EMPTY, TASK_ID, TASK_PROCESSES_PER_GANG, sizes

for dag_id, gangs in sizes(EMPTY).items():
    with DAG(dag_id, schedule=None):

        @task(task_id=TASK_ID)
        def nothing(number: int) -> None:
            """Do nothing."""

        nothing.expand(number=list(range(gangs * TASK_PROCESSES_PER_GANG)))
