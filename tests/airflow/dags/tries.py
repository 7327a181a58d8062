"""A DAG whose task returns the id of its try, and whether Airflow says that the try runs."""

from __future__ import annotations

from airflow.sdk import DAG, get_current_context, task

with DAG("tries", schedule=None):

    @task
    def ask() -> list[str | bool | None]:
        import logging

        from airflow_provider_gangjobs.hooks.task_state import is_running_try

        ti = get_current_context()["ti"]
        return [str(ti.id), is_running_try(ti, logging.getLogger(__name__))]

    ask()
