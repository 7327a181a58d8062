"""Reads the state of a task in a triggerer. The rules for the answer are `hooks.task_state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

from airflow_provider_gangjobs.hooks.task_state import TaskInstances, read_instances, read_state

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.identity import TaskKey


async def read_task_state(task_instance: Any, log: Logger) -> str:
    """Return the state of a task instance, or a value of `AbsentState`. Never raises.

    :param task_instance: Has `dag_id`, `run_id`, `task_id` and `map_index`. `None` is unknown.
    """
    return await sync_to_async(read_state)(task_instance, RuntimeTaskInstance.get_task_states, log)


async def read_task_instances(task: TaskKey, log: Logger) -> TaskInstances | None:
    """Return the instances of the task in its DAG run. `None` if Airflow could not be asked. Never raises."""
    ask, count_runs = RuntimeTaskInstance.get_task_states, RuntimeTaskInstance.get_dr_count
    return await sync_to_async(read_instances)(task, ask, count_runs, log)


__all__ = ["read_task_instances", "read_task_state"]
