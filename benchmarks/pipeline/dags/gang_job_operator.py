"""Mapped gangs of two with `GangJobOperator`: with workers, ended in the triggerer, and without a worker."""

from __future__ import annotations

from typing import Final

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from benchmarks.pipeline.sizes import ENDED_IN_TRIGGERER, TASK_ID, WITH_WORKERS, WITHOUT_WORKER, sizes

VARIANTS: Final = {
    WITH_WORKERS: {"end_from_trigger": False},
    ENDED_IN_TRIGGERER: {},
    WITHOUT_WORKER: {"start_from_trigger": True},
}
"""The parameters that differ, by DAG id."""

for variant, parameters in VARIANTS.items():
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
