"""Sensors that wait for no gang: a template that is text, a task that does not exist, and a mapped task."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor

WAIT = {"timeout": timedelta(minutes=20).total_seconds()}

with DAG("sensors", schedule=None):

    @task
    def reference() -> dict[str, str]:
        return {"namespace": "default", "name": "train", "uid": ""}

    @task
    def mapped(number: int) -> int:
        return number

    reference() >> GangJobSensor(task_id="text", gangs="{{ ti.xcom_pull('reference') }}", **WAIT)
    GangJobSensor(task_id="unknown", external_task_id="train", **WAIT)
    mapped.expand(number=[0, 1]) >> GangJobSensor(task_id="without_index", external_task_id="mapped", **WAIT)
