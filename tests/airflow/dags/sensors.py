"""A sensor that waits for no gang, because a template is text."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor

WAIT = {"timeout": timedelta(minutes=20).total_seconds()}

with DAG("sensors", schedule=None):

    @task
    def reference() -> dict[str, str]:
        return {"namespace": "default", "name": "train", "uid": ""}

    reference() >> GangJobSensor(task_id="text", gangs="{{ ti.xcom_pull('reference') }}", **WAIT)
