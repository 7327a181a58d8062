"""Count the distinct visitors of a site with a Python function that runs on every rank
of a gang.

Each rank reads its share of the days. A visitor visits the site on several days, so the
ranks shuffle the visits: one rank receives all visits of a visitor and counts the
visitor once. The image needs only Python.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.decorators.gang_job import Gang


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "python:3.12-slim"},
    doc_md=__doc__,
)
def count_visitors_gang() -> None:
    @task
    def days(count: int) -> list[str]:
        """Return the dates of `count` days."""
        from datetime import date

        return [
            (date(2026, 1, 1) + timedelta(days=day)).isoformat() for day in range(count)
        ]

    @task.gang_job(
        image="{{ params.image }}",
        workers=3,
        resources={"cpu": "250m", "memory": "64Mi"},
        # The function imports this module. The path is relative to this file.
        files={"shuffle.py": "include/shuffle.py"},
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    )
    def visitors(days: list[str], site: str, *, gang: Gang) -> dict:
        """Read this rank's share of the days, and count this rank's share of the
        visitors.
        """
        import random
        import zlib

        from shuffle import exchange

        def read(day: str) -> list[str]:
            """Return the visits of a day. A real function reads them from storage."""
            draw = random.Random(f"{site} {day}")
            return [f"visitor-{draw.randrange(1000)}" for _ in range(500)]

        visitors_by_rank: list[set[str]] = [set() for _ in range(gang.world_size)]
        visits = 0
        for day in days[gang.rank :: gang.world_size]:
            for visitor in read(day):
                visitors_by_rank[zlib.crc32(visitor.encode()) % gang.world_size].add(
                    visitor
                )
                visits += 1
        print(f"{gang.host} has read {visits} visits of {site}")
        mine = set().union(*exchange(gang, [sorted(part) for part in visitors_by_rank]))
        return {"rank": gang.rank, "visits": visits, "visitors": len(mine)}

    @task
    def report(sites: list[list[dict]]) -> list[int]:
        """Return the number of visitors of each site. No two ranks count the same
        visitor.
        """
        totals = [sum(rank["visitors"] for rank in ranks) for ranks in sites]
        for ranks, total in zip(sites, totals, strict=True):
            print(f"{total} visitors in {sum(rank['visits'] for rank in ranks)} visits")
        return totals

    report(visitors.partial(days=days(7)).expand(site=["shop", "blog"]))


count_visitors_gang()
