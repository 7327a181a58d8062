"""Estimate pi on a gang of four ranks, and combine what the ranks have found. The DAG
of the tutorial.

The rank that the parameter `broken_rank` names fails. With a large `cpu`, the gang does
not fit on the nodes.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.decorators.gang_job import Gang


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"cpu": "100m", "broken_rank": -1},
    doc_md=__doc__,
)
def tutorial_gang() -> None:
    @task.gang_job(
        image="python:3.12-slim",
        workers=4,
        resources={"cpu": "{{ params.cpu }}", "memory": "64Mi"},
        results="all",
        assemble_timeout=timedelta(seconds=30),
        run_timeout=timedelta(minutes=10),
    )
    def throw_darts(darts: int, broken_rank: str, *, gang: Gang) -> int:
        """Throw darts at a square, and return how many hit the quarter of a circle in
        it.
        """
        import random

        draw = random.Random(gang.rank)
        hits = sum(draw.random() ** 2 + draw.random() ** 2 < 1 for _ in range(darts))
        print(f"rank {gang.rank} of {gang.world_size}: {hits} of {darts} darts hit")
        if gang.rank == int(broken_rank):
            raise ValueError("the darts of this rank are gone")
        return hits

    @task
    def estimate(hits: list[int], darts: int) -> float:
        """Return the estimate of pi from the hits of all ranks."""
        return 4 * sum(hits) / (darts * len(hits))

    darts = 200_000
    estimate(throw_darts(darts, "{{ params.broken_rank }}"), darts)


tutorial_gang()
