"""Count the requests of an hour in shards, and reduce the counts of the shards to one
report.

Each rank reads its share of the files alone, so the ranks need no addresses of each
other (`launch="shards"`). The gang still runs as a whole: either all shards are
counted, or the task fails with the shard that is missing. An hour without files skips
the report (`skip_on_exit_code`). The image needs only Python.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

COUNT = """
import collections, json, os, random, sys

index, count = int(os.environ["SHARD_INDEX"]), int(os.environ["SHARD_COUNT"])
hour, files = sys.argv[1], int(sys.argv[2])
if files == 0:
    print(f"there are no files of {hour}")
    sys.exit(99)
statuses = collections.Counter()
for number in range(files)[index::count]:
    # A real program reads the file of this number from storage.
    draw = random.Random(f"{hour} {number}")
    answers = ("200", "200", "200", "404", "500")
    statuses.update(draw.choice(answers) for _ in range(100))
print(f"shard {index} of {count} has counted {sum(statuses.values())} requests")
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    json.dump(statuses, result)
"""


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "python:3.12-slim", "hour": "2026-01-01T05", "files": 20},
    doc_md=__doc__,
)
def hourly_shards_gang() -> None:
    @task
    def reduce(shards: list[dict]) -> dict[str, int]:
        """Return how many requests had each status."""
        from collections import Counter

        total: Counter[str] = Counter()
        for shard in shards:
            total.update(shard)
        print(f"{sum(total.values())} requests in {len(shards)} shards: {dict(total)}")
        return dict(total)

    count = GangJobOperator(
        task_id="count",
        launch="shards",
        image="{{ params.image }}",
        command=[
            "python",
            "/gang/files/count.py",
            "{{ params.hour }}",
            "{{ params.files }}",
        ],
        files={"count.py": COUNT},
        workers=4,
        resources={"cpu": "100m", "memory": "64Mi"},
        results="all",
        skip_on_exit_code=99,
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    )
    reduce(count.output)


hourly_shards_gang()
