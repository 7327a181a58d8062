"""Two gangs of three ranks. The first one fits onto the nodes. The second one fits their sum, and not the nodes."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

PROGRAM = """
import json, os
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"])
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump(rank * rank, result)
"""

with DAG("sum_of_squares", schedule=None):

    def gang(task_id: str, cpu: str) -> GangJobOperator:
        return GangJobOperator(
            task_id=task_id,
            image="python:3.12-slim",
            command=["python", "/gang/files/program.py"],
            files={"program.py": PROGRAM},
            workers=3,
            resources={"cpu": cpu},
            results="all",
            queue_timeout=timedelta(seconds=10),
            assemble_timeout=timedelta(seconds=10),
        )

    @task
    def total(squares: list[int]) -> int:
        return sum(squares)

    total(gang("fits", cpu="1").output)
    gang("never_fits", cpu="1300m")
