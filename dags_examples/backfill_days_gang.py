"""Backfill days with a preemptible gang of low priority, which continues from its
checkpoints.

The gang has a low priority class, so the pods of other teams may preempt it. With
`max_disruptions` it is then submitted again within the same try of the task, and each
rank continues from the checkpoint that it has written to a volume. The image needs only
Python. The DAG has a schedule, so it starts paused. Unpause it; then a backfill runs
the days:

    airflow dags unpause backfill_days_gang
    airflow backfill create --dag-id backfill_days_gang \
        --from-date 2026-01-01 --to-date 2026-01-07 --max-active-runs 3
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

COUNT = """
import json, os, random, sys, time

rank, attempt = os.environ["RANK"], os.environ["GANG_ATTEMPT"]
day, chunks, pause = sys.argv[1:]
checkpoint = f"/checkpoints/{day}-rank-{rank}.json"
state = {"done": 0, "visits": 0}
if os.path.exists(checkpoint):
    with open(checkpoint) as file:
        state = json.load(file)
resumed_at = state["done"]
print(f"rank {rank} continues at chunk {resumed_at} of {chunks}")
for chunk in range(resumed_at, int(chunks)):
    # A real program reads the chunk from storage.
    draw = random.Random(f"{day} {rank} {chunk}")
    time.sleep(float(pause))
    state = {"done": chunk + 1, "visits": state["visits"] + draw.randrange(100)}
    with open(checkpoint + ".part", "w") as file:
        json.dump(state, file)
    os.replace(checkpoint + ".part", checkpoint)  # a rank may be killed at any time
os.remove(checkpoint)
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    found = {"visits": state["visits"], "attempt": int(attempt)}
    json.dump({**found, "resumed_at": resumed_at}, result)
"""


@dag(
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    tags=["gangjobs"],
    params={
        "image": "python:3.12-slim",
        "priority_class": "batch-low",
        "folder": "/srv/checkpoints",
        "chunks": 100,
        "pause": 0.1,
    },
    doc_md=__doc__,
)
def backfill_days_gang() -> None:
    @task
    def total(ranks: list[dict]) -> int:
        """Return the visits of the day."""
        return sum(rank["visits"] for rank in ranks)

    count = GangJobOperator(
        task_id="count",
        image="{{ params.image }}",
        command=[
            "python",
            "/gang/files/count.py",
            "{{ ds }}",
            "{{ params.chunks }}",
            "{{ params.pause }}",
        ],
        files={"count.py": COUNT},
        workers=3,
        resources={"cpu": "100m", "memory": "64Mi"},
        priority_class="{{ params.priority_class }}",
        # On a cluster of several nodes: {"persistentVolumeClaim": {"claimName":
        # "checkpoints"}}
        volumes=[{"name": "checkpoints", "hostPath": {"path": "{{ params.folder }}"}}],
        volume_mounts=[{"name": "checkpoints", "mountPath": "/checkpoints"}],
        results="all",
        max_disruptions=10,
        queue_timeout=timedelta(days=1),
        run_timeout=timedelta(hours=2),
    )
    total(count.output)


backfill_days_gang()
