"""Functions on every rank: arguments from other tasks and templates, outputs unrolled, mapped, set up, and failing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, setup, task

if TYPE_CHECKING:
    from airflow_provider_gangjobs.decorators.gang_job import Gang


GANG: dict[str, Any] = {
    "image": "python:3.12-slim",
    "workers": 2,
    "resources": {"cpu": "100m", "memory": "64Mi"},
    "assemble_timeout": timedelta(minutes=30),
    "run_timeout": timedelta(minutes=30),
    "on_finish": "delete",
}

with DAG("functions", schedule=None):

    @task
    def names() -> list[str]:
        return ["a", "b"]

    @setup
    @task.gang_job(**GANG)
    def before() -> None:
        print("set up")

    @task.gang_job(**GANG)
    def count(known: list[str], *more: str, gang: Gang) -> dict[str, Any]:
        mine = [*known, *more][gang.rank :: gang.world_size]
        return {"rank": gang.rank, "names": mine}

    @task
    def total(ranks: list[dict[str, Any]]) -> int:
        return sum(len(rank["names"]) for rank in ranks)

    @task
    def length(names: list[str]) -> int:
        return len(names)

    @task.gang_job(**GANG)
    def tell(name: str, *, gang: Gang) -> str:
        return f"{name}{gang.rank}"

    @task
    def joined(gangs: list[list[str]]) -> str:
        return " ".join(word for gang in gangs for word in gang)

    known = names()
    counted = count(known, "c", "{{ dag.dag_id }}")
    before() >> counted
    total(counted)
    first = count.override(task_id="first", results="rank0")(known, "c", "{{ dag.dag_id }}")
    length(first["names"])
    joined(tell.expand(name=["x", "y"]))

with DAG("failing_function", schedule=None):

    @task.gang_job(**GANG)
    def fail(*, gang: Gang) -> None:
        import time

        if gang.rank == 1:
            raise ValueError("no rows in shard 1")
        time.sleep(3000)

    fail()
