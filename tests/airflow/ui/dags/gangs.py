"""DAGs for the UI tests: a gang that waits, one that runs, one that fails twice, one that succeeds, and no gang."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

SLEEPS = "import time\ntime.sleep(3000)\n"
RANK_1_FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("<b>last words</b>", flush=True)
    with open(os.environ["GANG_RESULT_PATH"], "w") as result:
        result.write("<script>document.title = 'owned'</script><img src=x onerror=alert(1)>")
    sys.exit(3)
time.sleep(3000)
"""
RETURNS = """
import os
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    result.write('"what rank 0 found out"')
"""


def gang(program: str, *, cpu: str = "100m", **parameters: object) -> GangJobOperator:
    return GangJobOperator(
        task_id="gang",
        image="python:3.12-slim",
        command=["python", "/gang/files/program.py"],
        files={"program.py": program},
        workers=3,
        resources={"cpu": cpu, "memory": "64Mi"},
        assemble_timeout=timedelta(hours=2),
        run_timeout=timedelta(hours=3),
        **parameters,
    )


with DAG("waits", schedule=None):
    gang(SLEEPS, cpu="1000")

with DAG("runs", schedule=None):
    gang(SLEEPS)

with DAG("fails", schedule=None):
    gang(RANK_1_FAILS, retries=1, retry_delay=timedelta(seconds=1))

with DAG("done", schedule=None):
    gang(RETURNS)

with DAG("mapped", schedule=None):
    GangJobOperator.partial(
        task_id="gang", image="python:3.12-slim", workers=1, resources={"cpu": "100m", "memory": "64Mi"}
    ).expand(command=[["true"], ["false"]])

with DAG("refused", schedule=None):
    gang(SLEEPS, cpu="{{ 'plenty' }}")

with DAG("plain", schedule=None):

    @task
    def other() -> int:
        return 1

    other()
