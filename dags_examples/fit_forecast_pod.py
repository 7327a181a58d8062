"""Fit a forecast of daily sales in one pod.

One pod needs no gang scheduler. It waits for room within a limit, and runs again after
a preemption without a retry. A program that fails would fail again, so the task has no
retries. The image needs only Python.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

FIT = """
import itertools, json, os, random, sys

WEEK, KEPT_BACK = 7, 28
days = int(sys.argv[1])
if days < 2 * WEEK + KEPT_BACK:
    sys.exit(f"{days} days of sales are too few to fit a week and to check a month")
# A real program reads the sales from storage.
draw = random.Random(7)
by_weekday = (100, 90, 95, 105, 140, 180, 60)
sales = [
    by_weekday[day % WEEK] * (1 + day / 1000) + draw.gauss(0, 4) for day in range(days)
]


def smooth(history, alpha, beta, gamma):  # Holt and Winters
    level, trend = sum(history[:WEEK]) / WEEK, 0.0
    season = [value / level for value in history[:WEEK]]
    squares = 0.0
    for day, value in enumerate(history[WEEK:], WEEK):
        factor, expected = season[day % WEEK], level + trend
        squares += (value - expected * factor) ** 2
        next_level = alpha * value / factor + (1 - alpha) * expected
        trend = beta * (next_level - level) + (1 - beta) * trend
        level = next_level
        season[day % WEEK] = gamma * value / level + (1 - gamma) * factor
    return squares, level, trend, season


history, checked = sales[:-KEPT_BACK], sales[-KEPT_BACK:]
weights = (0.05, 0.1, 0.2, 0.4)
grid = itertools.product(weights, repeat=3)
best = min(grid, key=lambda choice: smooth(history, *choice)[0])
_, level, trend, season = smooth(history, *best)
expected = [
    (level + trend * (ahead + 1)) * season[(len(history) + ahead) % WEEK]
    for ahead in range(KEPT_BACK)
]
wrong = sum(abs(one - other) for one, other in zip(expected, checked))
error = wrong / sum(checked)
print(f"weights {best}: {error:.1%} wrong on {KEPT_BACK} days that were kept back")
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump({"weights": best, "error": error}, result)
"""


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "python:3.12-slim", "days": 730},
    doc_md=__doc__,
)
def fit_forecast_pod() -> None:
    @task
    def check(fit: dict) -> float:
        """Return the error of the forecast, and refuse one that nobody could use."""
        if fit["error"] > 0.1:
            raise ValueError(f"the forecast is {fit['error']:.0%} wrong: {fit}")
        return fit["error"]

    fit = GangJobOperator(
        task_id="fit",
        image="{{ params.image }}",
        command=["python", "/gang/files/fit.py", "{{ params.days }}"],
        files={"fit.py": FIT},
        resources={"cpu": "500m", "memory": "128Mi"},
        assemble_timeout=timedelta(minutes=30),  # for a node, an image, and volumes
        run_timeout=timedelta(minutes=10),
        max_disruptions=3,  # preempted, evicted, or lost with a node: without a retry
        results="rank0",  # what the program writes to $GANG_RESULT_PATH
    )
    check(fit.output)


fit_forecast_pod()
