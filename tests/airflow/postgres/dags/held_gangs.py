"""Gangs that run until their gate exists: a file that the test creates. The run's configuration has its name."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

RANKS = 2
MANY = 30
PROGRAM = """
import json, os, pathlib, time
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
gate = pathlib.Path("/gates", os.environ["GATE"])
while not gate.exists():
    time.sleep(0.2)
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump({"rank": rank, "number": os.environ["NUMBER"]}, result)
"""


def held(number: object) -> dict[str, object]:
    """Return the parameters in which one gang of a mapped task differs from the next one."""
    return {"env": {"GATE": "{{ dag_run.conf['gate'] }}", "NUMBER": str(number)}}


COMMON = {
    "task_id": "gang",
    "image": "python:3.12-slim",
    "command": ["python", "/gang/files/program.py"],
    "files": {"program.py": PROGRAM},
    "workers": RANKS,
    "resources": {"cpu": "10m", "memory": "16Mi"},
    "volumes": [{"name": "gates", "hostPath": {"path": os.environ["GANGJOBS_TEST_GATES"]}}],
    "volume_mounts": [{"name": "gates", "mountPath": "/gates"}],
    "results": "all",
    "assemble_timeout": timedelta(minutes=10),
    "retries": 2,
    "retry_delay": timedelta(seconds=0),
}

with DAG("held", schedule=None):
    GangJobOperator(**COMMON, **held(0))

with DAG("many", schedule=None):
    GangJobOperator.partial(**COMMON).expand_kwargs([held(number) for number in range(MANY)])

with DAG("queued", schedule=None):
    GangJobOperator(**COMMON, **held(0), keep_suspended=True)

with DAG("assembling", schedule=None):
    GangJobOperator(**{**COMMON, "resources": {"cpu": "1000"}}, **held(0))
