"""Many gangs of two ranks that run for different times. Each rank writes its number and that of its gang.

Some gangs start and end in a triggerer.
"""

from __future__ import annotations

import os
import random
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

GANGS = int(os.environ["GANGJOBS_SOAK_GANGS"])
RUN_S_MAX = int(os.environ["GANGJOBS_SOAK_RUN_S_MAX"])
WITHOUT_WORKER = int(os.environ["GANGJOBS_SOAK_WITHOUT_WORKER"])
SEED = int(os.environ["GANGJOBS_SOAK_SEED"])
PROGRAM = 'sleep "$RUN_S"; printf "[%s, %s]" "$RANK" "$NUMBER" > "$GANG_RESULT_PATH"'

run_s = random.Random(SEED)
envs = [{"env": {"RUN_S": str(run_s.randint(1, RUN_S_MAX)), "NUMBER": str(number)}} for number in range(GANGS)]

with DAG("soak", schedule=None, max_active_tasks=GANGS):
    for task_id, some in (("gang_without_worker", envs[:WITHOUT_WORKER]), ("gang", envs[WITHOUT_WORKER:])):
        GangJobOperator.partial(
            task_id=task_id,
            image="busybox",
            command=["sh", "-c", PROGRAM],
            workers=2,
            resources={"cpu": "10m", "memory": "8Mi"},
            results="all",
            logs="none",
            retries=100,
            retry_delay=timedelta(seconds=1),
            start_from_trigger=task_id == "gang_without_worker",
        ).expand_kwargs(some)
