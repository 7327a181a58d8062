"""Gangs of three ranks: one DAG for each result of a task."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction, RetryRule, task

from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

WRITE_RANK = """
import json, os
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"])
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump({"rank": rank, "square": rank * rank}, result)
"""
RANK_1_FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("rank 1 gives up")
    sys.exit(3)
time.sleep(3000)
"""
LONG_LOG = """
import os, time
if os.environ["RANK"] == "0":
    for line in range(20_000):
        print("line", line)
time.sleep(15)
"""
LONG_LOG_BEFORE_RANK_1_FAILS = """
import os, sys, time
if os.environ["RANK"] == "0":
    for line in range(10_000):
        print("line", line)
    sys.stdout.flush()
    time.sleep(3000)
time.sleep(10)
sys.exit(3)
"""
FIRST_ATTEMPT_IS_ENDLESS = (
    """
import os, time
time.sleep(3000 if os.environ["GANG_ATTEMPT"] == "0" else 0)
"""
    + WRITE_RANK
)
RESOURCES = {"cpu": "100m", "memory": "64Mi"}


def gang(program: str, **parameters: object) -> GangJobOperator:
    return GangJobOperator(
        task_id="gang",
        image="python:3.12-slim",
        command=["python", "/gang/files/program.py"],
        files={"program.py": program},
        workers=3,
        resources=RESOURCES,
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=30),
        **parameters,
    )


with DAG("three_ranks", schedule=None):

    @task
    def total(ranks: list[dict[str, int]]) -> int:
        return sum(rank["square"] for rank in ranks)

    total(gang(WRITE_RANK, results="all").output)

with DAG("three_ranks_in_worker", schedule=None):
    gang(WRITE_RANK, deferrable=False)

with DAG("failing_rank", schedule=None):
    gang(RANK_1_FAILS, on_finish="delete")

with DAG("failing_rank_with_policy", schedule=None):
    cannot_help = RetryRule(GangJobError, RetryAction.FAIL, reason="a retry cannot help")
    gang(RANK_1_FAILS, retries=3, retry_policy=ExceptionRetryPolicy(rules=[cannot_help]), on_finish="delete")

with DAG("long_log", schedule=None):
    gang(LONG_LOG)

with DAG("long_log_of_a_deleted_pod", schedule=None):
    gang(LONG_LOG_BEFORE_RANK_1_FAILS, retries=0)

with DAG("evicted", schedule=None):
    gang(FIRST_ATTEMPT_IS_ENDLESS, max_disruptions=3, on_finish="delete")

with DAG("node_lost", schedule=None):
    gang(FIRST_ATTEMPT_IS_ENDLESS, max_disruptions=3, kubernetes_conn_id="kubernetes_shaky", retries=0)

with DAG("endless", schedule=None):
    gang("import time\ntime.sleep(3000)\n", execution_timeout=timedelta(minutes=30))

with DAG("endless_in_worker", schedule=None):
    gang("import time\ntime.sleep(3000)\n", deferrable=False)

with DAG("without_cluster", schedule=None):
    gang("", kubernetes_conn_id="kubernetes_nowhere")


class WorkerDiesBeforeDelivery(GangJobOperator):
    """An operator whose process ends in its first try, after Airflow has noted the success and before the delivery."""

    def deliver(self, ti: Any) -> None:
        if ti.try_number == 1:
            os._exit(1)
        super().deliver(ti)


with DAG("not_delivered", schedule=None):
    WorkerDiesBeforeDelivery(
        task_id="gang",
        image="i",
        command=["sh", "-c", 'printf %s "$GANG_ATTEMPT" > "$GANG_RESULT_PATH"'],
        workers=3,
        resources=RESOURCES,
    )
