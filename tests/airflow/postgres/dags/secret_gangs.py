"""Gangs that write the secrets of their task in every way, as strangers' programs do."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from kubernetes.client import models as k8s

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

ENV = {
    "PLAIN": "{{ var.value.some_password }}",
    "JSON_WHOLE": "{{ var.json.creds_secret }}",
    "JSON_ITEM": "{{ var.json.creds_secret.token }}",
    "CONN": "{{ conn.db_conn.password }}",
    "EXTRA": "{{ conn.db_conn.extra_dejson.api_key }}",
    "URI": "{{ conn.db_conn.get_uri() }}",
}
WRITE = 'env; cat $GANG_FILES/settings; echo $0; sleep 4; env; echo "$PLAIN $CONN" >&2; '
COMMON = {
    "image": "python:3.12-slim",
    "workers": 1,
    "resources": {"cpu": "10m", "memory": "16Mi"},
    "args": ["{{ var.value.some_password }}"],
    "files": {"settings": "token = {{ var.json.creds_secret.token }}\n"},
    "assemble_timeout": timedelta(minutes=10),
    "retries": 0,
}

with DAG("secrets", schedule=None):
    GangJobOperator(task_id="gang", command=["sh", "-c", WRITE], env=ENV, **COMMON)
    GangJobOperator(
        task_id="fails",
        command=["sh", "-c", f"{WRITE} exit 3"],
        env=[k8s.V1EnvVar(name=name, value=value) for name, value in ENV.items()],
        **COMMON,
    )
    GangJobOperator(
        task_id="refused", command=["true"], env=ENV, labels={"x": "{{ var.value.some_password }} is bad"}, **COMMON
    )
