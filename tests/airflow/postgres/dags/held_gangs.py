"""Gangs that run until their gate exists: a file that the test creates. The run's configuration has its name."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

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
    GangJobOperator(**COMMON, **held(0), end_from_trigger=False)

with DAG("not_streamed", schedule=None):  # a worker reads the log at the end; of a streamed log, it may have no need
    GangJobOperator(**COMMON, **held(0), stream_logs=False, end_from_trigger=False)

with DAG("ends_in_triggerer", schedule=None):
    GangJobOperator(**COMMON, **held(0))

with DAG("many", schedule=None):
    GangJobOperator.partial(**COMMON, end_from_trigger=False).expand_kwargs([held(number) for number in range(MANY)])

with DAG("queued", schedule=None):
    GangJobOperator(**COMMON, **held(0), manifest={"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True}})


class CompletesLate(GangJobOperator):
    """Begins to complete the task when a second file exists, beside the gate."""

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        print("the worker has the event", flush=True)
        gate = context["dag_run"].conf["gate"]
        while not Path(os.environ["GANGJOBS_TEST_GATES"], f"{gate}.completes").exists():
            time.sleep(0.1)
        return super().execute_complete(context, event)


with DAG("completes_late", schedule=None):
    CompletesLate(**COMMON, **held(0), durable=False)

RESTARTED_PROGRAM = """
import json, os, pathlib, sys, time
rank, restart = int(os.environ["RANK"]), os.environ["GANG_RESTART"]
gate = pathlib.Path("/gates", os.environ["GATE"])
gate.with_suffix(f".runs-{restart}-{rank}").touch()
while not gate.exists():
    if rank == 1 and gate.with_suffix(f".fails-{restart}").exists():
        sys.exit(3)
    time.sleep(0.2)
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump({"rank": rank, "number": os.environ["NUMBER"]}, result)
"""

with DAG("restarted", schedule=None):
    memory = {"resources": {"cpu": "10m", "memory": "64Mi"}}  # for the program and its supervisor
    GangJobOperator(**{**COMMON, **memory, "files": {"program.py": RESTARTED_PROGRAM}}, **held(0), restarts=3)

with DAG("assembling", schedule=None):
    GangJobOperator(**{**COMMON, "resources": {"cpu": "1000"}}, **held(0))
