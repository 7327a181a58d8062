"""Submit a gang in one DAG, and wait for it in another one.

`submit_forecast_gang` ends as soon as the gang is submitted: the gang runs on without a
task. `read_forecast_gang` finds the gang by a label, whoever has submitted it, waits
for its end without a worker, and deletes it after its results were read. The image
needs only Python.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.delete_gang import GangJobDeleteOperator
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor

FORECAST = """
import json, os, random

rank = int(os.environ["RANK"])
draws = [random.Random(f"{rank} {i}") for i in range(50)]
walks = [sum(draw.choice((-1, 1)) for _ in range(100)) for draw in draws]
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump({"rank": rank, "mean": sum(walks) / len(walks)}, result)
"""

PARAMS = {"image": "python:3.12-slim", "day": "2026-01-01"}


@dag(schedule=None, catchup=False, tags=["gangjobs"], params=PARAMS, doc_md=__doc__)
def submit_forecast_gang() -> None:
    GangJobOperator(
        task_id="submit",
        wait_until="submitted",
        image="{{ params.image }}",
        command=["python", "/gang/files/forecast.py"],
        files={"forecast.py": FORECAST},
        workers=3,
        resources={"cpu": "250m", "memory": "64Mi"},
        labels={"forecast": "{{ params.day }}"},
        # No task waits, so the API server ends the gang after the sum of both.
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    )


@dag(schedule=None, catchup=False, tags=["gangjobs"], params=PARAMS, doc_md=__doc__)
def read_forecast_gang() -> None:
    @task
    def mean(gangs: list[dict]) -> float:
        """Return the mean of all forecasts, which the ledgers of the gangs contain."""
        import json

        from airflow_provider_gangjobs.gang.identity import GangRef
        from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

        hook = GangJobHook()
        refs = [GangRef(gang["namespace"], gang["name"], gang["uid"]) for gang in gangs]
        means = [
            json.loads(outcome.message)["mean"]
            for ref in refs
            for outcome in hook.outcomes(ref)
        ]
        print(f"{len(means)} ranks forecast a mean of {sum(means) / len(means):.2f}")
        return sum(means) / len(means)

    wait = GangJobSensor(
        task_id="wait", selector="forecast={{ params.day }}", timeout=timedelta(hours=1)
    )
    delete = GangJobDeleteOperator(
        task_id="delete", gangs=wait.output, ignore_missing=True
    )
    mean(wait.output) >> delete.as_teardown()


submit_forecast_gang()
read_forecast_gang()
