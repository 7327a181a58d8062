"""DAGs of two teams, whose gangs the tests of the page "Gangs" write into the cluster."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

for team in ("red", "blue"):
    for number in range(10):
        with DAG(f"{team}-{number}", schedule=None):
            GangJobOperator(task_id="gang", image="python:3.12-slim", command=["true"], workers=1)
