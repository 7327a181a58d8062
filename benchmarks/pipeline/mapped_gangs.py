"""The DAGs of mapped gangs, which differ in one parameter. Each has a file of its own, as that of a user has."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from benchmarks.pipeline.sizes import TASK_ID, sizes


def mapped_gangs(variant: str, **parameters: bool) -> None:
    """Create the DAGs of a variant: mapped gangs of two with `GangJobOperator`."""
    for dag_id, gangs in sizes(variant).items():
        with DAG(dag_id, schedule=None):
            GangJobOperator.partial(
                task_id=TASK_ID,
                name="g-{{ ti.map_index }}",
                image="registry.example/train:1",
                command=["python", "train.py"],
                workers=2,
                resources={"cpu": "10m", "memory": "16Mi"},
                logs="all",
                **parameters,
            ).expand(env=[{"NUMBER": str(number)} for number in range(gangs)])
