"""Mapped tasks that defer and do nothing else: what each gang that ends in the triggerer costs Airflow alone."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, BaseOperator

from benchmarks.pipeline.sizes import DEFERRED, TASK_ID, sizes


class Defer(BaseOperator):
    """Defers until a trigger ends the task."""

    def __init__(self, *, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = number

    def execute(self, context: Any) -> None:
        """Defer."""
        from benchmarks.pipeline.ending_trigger import EndingTrigger

        self.defer(trigger=EndingTrigger(), method_name="execute")


for dag_id, gangs in sizes(DEFERRED).items():
    with DAG(dag_id, schedule=None):
        Defer.partial(task_id=TASK_ID).expand(number=list(range(gangs)))
