"""Count a site's distinct visitors by a Python function that runs on every rank of a gang.

Each rank reads its share of the days. A visitor comes on many of them, so the ranks shuffle: all that a visitor left
goes to the one rank that counts it. The image needs Python, and nothing else.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.decorators.gang_job import Gang


@dag(schedule=None, catchup=False, tags=["gangjobs"], params={"image": "python:3.12-slim"}, doc_md=__doc__)
def count_visitors_gang() -> None:
    @task
    def days(count: int) -> list[str]:
        """A week, or more."""
        from datetime import date

        return [(date(2026, 1, 1) + timedelta(days=day)).isoformat() for day in range(count)]

    @task.gang_job(
        image="{{ params.image }}",
        workers=3,
        resources={"cpu": "250m", "memory": "64Mi"},
        files={"shuffle.py": "include/shuffle.py"},  # from the folder of this file; the function imports it
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    )
    def visitors(days: list[str], site: str, *, gang: Gang) -> dict:
        """Read every third day, and count every third visitor."""
        import random
        import zlib

        from shuffle import exchange

        def read(day: str) -> list[str]:
            """The visits of a day. Yours come from storage."""
            draw = random.Random(f"{site} {day}")
            return [f"visitor-{draw.randrange(1000)}" for _ in range(500)]

        seen: list[set[str]] = [set() for _ in range(gang.world_size)]
        visits = 0
        for day in days[gang.rank :: gang.world_size]:
            for visitor in read(day):
                seen[zlib.crc32(visitor.encode()) % gang.world_size].add(visitor)
                visits += 1
        print(f"{gang.host} has read {visits} visits of {site}")
        mine = set().union(*exchange(gang, [sorted(part) for part in seen]))
        return {"rank": gang.rank, "visits": visits, "visitors": len(mine)}

    @task
    def report(sites: list[list[dict]]) -> list[int]:
        """Visitors of each site: no two ranks have counted the same one."""
        totals = [sum(rank["visitors"] for rank in ranks) for ranks in sites]
        for ranks, total in zip(sites, totals, strict=True):
            print(f"{total} visitors in {sum(rank['visits'] for rank in ranks)} visits")
        return totals

    report(visitors.partial(days=days(7)).expand(site=["shop", "blog"]))


count_visitors_gang()
