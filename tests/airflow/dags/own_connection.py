"""A connection that the DAG file puts into its process: workers have it, and triggerers do not."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if "AIRFLOW_CONN_KUBERNETES_DEFAULT" in os.environ:
    os.environ["AIRFLOW_CONN_ONLY_WORKERS"] = os.environ["AIRFLOW_CONN_KUBERNETES_DEFAULT"]

with DAG("own_connection", schedule=None):
    GangJobOperator(
        task_id="gang",
        kubernetes_conn_id="only_workers",
        image="python:3.12-slim",
        command=["python", "-c", "import os; open(os.environ['GANG_RESULT_PATH'], 'w').write('5')"],
        workers=2,
        resources={"cpu": "100m", "memory": "64Mi"},
    )
