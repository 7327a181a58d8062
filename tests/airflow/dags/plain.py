"""A DAG without gangs: it shows whether Airflow itself works here."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG, task

with DAG("plain", schedule=None):

    @task
    def answer() -> int:
        return 42

    answer() >> TimeDeltaSensor(task_id="wait", delta=timedelta(seconds=1), deferrable=True)
