"""Gangs that the triggerer starts, without a worker: plain, mapped, with templates, and with what only a worker can."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from airflow_provider_gangjobs.decorators.gang_job import Gang

IN_TRIGGERER: dict[str, Any] = {
    "image": "python:3.12-slim",
    "workers": 2,
    "resources": {"cpu": "100m", "memory": "64Mi"},
    "on_finish": "keep",
    "assemble_timeout": timedelta(minutes=30),
    "start_from_trigger": True,
}
SAY = ["sh", "-c", 'echo "\\"$WORD\\"" > $GANG_RESULT_PATH']

with DAG("started_plain", schedule=None):
    GangJobOperator(task_id="gang", command=SAY, env={"WORD": "plain"}, **IN_TRIGGERER)

with DAG("started_and_ended", schedule=None):
    GangJobOperator.partial(task_id="gang", command=SAY, **IN_TRIGGERER).expand(env=[{"WORD": "a"}, {"WORD": "b"}])

with DAG("started_mapped", schedule=None):
    GangJobOperator.partial(task_id="gang", command=SAY, **IN_TRIGGERER).expand(
        env=[{"WORD": "a"}, {"WORD": "b {{ run_id }}"}]
    )

with DAG("started_rendered", schedule=None, params={"word": "param"}):

    @task
    def word() -> str:
        return "xcom"

    @task.gang_job(**IN_TRIGGERER)
    def gang(first: str, *, second: str, gang: Gang) -> str:
        return f"{first} {second} {gang.rank}"

    word() >> gang(
        "{{ params.word }} {{ macros.ds_add('2026-01-01', 1) }}",
        second="{{ ti.xcom_pull(task_ids='word') }} {{ var.value.word }} {{ conn.word.host }}",
    )

with DAG("started_failing_template", schedule=None):
    GangJobOperator(task_id="gang", command=SAY, env={"WORD": "{{ nothing.at.all }}"}, **IN_TRIGGERER)

with DAG("started_in_worker", schedule=None):
    GangJobOperator(task_id="started", command=SAY, env={"WORD": "{{ ti.hostname }}"}, **IN_TRIGGERER)

with DAG("started_endless", schedule=None):
    GangJobOperator(
        task_id="gang", command=["sh", "-c", "while [ ! -e /gang/files/x ]; do sleep 1; done"], **IN_TRIGGERER
    )
