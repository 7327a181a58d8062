"""The DAGs of the text of a DAG file, as Airflow finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions._internal.contextmanager import DagContext

if TYPE_CHECKING:
    from airflow.sdk import DAG


def dags_of(source: str) -> list[DAG]:
    """Return the DAGs that a DAG file registers when Airflow imports it."""
    DagContext.autoregistered_dags.clear()
    DagContext.current_autoregister_module_name = __name__
    try:
        exec(compile(source, "converted.py", "exec", dont_inherit=True), {"__name__": __name__})
        return [dag for dag, _ in DagContext.autoregistered_dags]
    finally:
        DagContext.current_autoregister_module_name = None
        DagContext.autoregistered_dags.clear()


def tasks_of(source: str) -> dict[str, Any]:
    """Return the tasks of all DAGs of a file by their ids."""
    return {task.task_id: task for dag in dags_of(source) for task in dag.tasks}
