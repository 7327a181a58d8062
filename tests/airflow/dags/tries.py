"""A task that returns the id of its try and whether Airflow says that the try runs, and a gang of a late try."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from airflow_provider_gangjobs.attempt.task_gangs import StartGuard


class LateOperator(GangJobOperator):
    """An operator whose try seems to have begun long ago, so that the submission asks Airflow."""

    def _new_start_guard(self, ti: Any) -> StartGuard:
        guard = super()._new_start_guard(ti.model_copy(update={"start_date": datetime(2026, 1, 1, tzinfo=UTC)}))
        ask = guard._is_running

        async def ask_and_log() -> bool | None:
            answer = await ask()
            self.log.info("Airflow says whether the try runs: %s", answer)
            return answer

        guard._is_running = ask_and_log
        return guard


with DAG("tries", schedule=None):

    @task
    def ask() -> list[str | bool | None]:
        import logging

        from airflow_provider_gangjobs.airflow_api.task_state import is_running_try

        ti = get_current_context()["ti"]
        return [str(ti.id), is_running_try(ti, logging.getLogger(__name__))]

    ask()

with DAG("late", schedule=None):
    LateOperator(task_id="gang", image="python:3.12", command=["python", "-c", "pass"], resources={"cpu": "100m"})
