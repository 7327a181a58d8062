"""Gangs that write U+0000, which PostgreSQL stores in no JSON."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

COMMON: dict[str, Any] = {
    "image": "python:3.12-slim",
    "workers": 1,
    "resources": {"cpu": "10m", "memory": "16Mi"},
    "retry_delay": 0,
}
OUTPUT = r"import sys; sys.stdout.buffer.write(b'cannot open >\x00< file\n'); sys.stdout.flush(); sys.exit(3)"
RESULT = r"import os; open(os.environ['GANG_RESULT_PATH'], 'wb').write(b'a\x00b')"

with DAG("nul_in_output", schedule=None):
    GangJobOperator(task_id="gang", command=["python", "-c", OUTPUT], retries=0, **COMMON)

with DAG("nul_in_result", schedule=None):
    GangJobOperator(task_id="gang", command=["python", "-c", RESULT], retries=2, **COMMON)

with DAG("nul_in_exception", schedule=None):

    @task.gang_job(task_id="gang", retries=0, **COMMON)
    def parse() -> None:
        raise ValueError("cannot parse >\0<")

    parse()
