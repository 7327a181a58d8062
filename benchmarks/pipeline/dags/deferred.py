"""Mapped tasks that defer for as long as a pod runs, and do nothing else: what every deferrable operator pays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator

from benchmarks.pipeline.sizes import PODS_RUN_S, TASK_ID, sizes


class DeferredOperator(BaseOperator):
    """Defers once, and ends when it is resumed."""

    def __init__(self, *, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = number

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=PODS_RUN_S)), method_name="resume")

    def resume(self, context: Any, event: Any = None) -> None:
        """End the task."""


for dag_id, gangs in sizes("deferred").items():
    with DAG(dag_id, schedule=None):
        DeferredOperator.partial(task_id=TASK_ID).expand(number=list(range(gangs)))
