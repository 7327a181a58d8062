"""Estimate pi with a leader that hands out work and workers that do it: a gang whose
pods are not all alike.

The leader listens at its address, and each worker asks the leader for parts until none
is left. Neither the leader nor a worker can work alone, so all pods start together. The
image needs only Python.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

WORKERS = 3


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "python:3.12-slim", "parts": 12},
    doc_md=__doc__,
)
def leader_and_workers_gang() -> None:
    @task
    def report(results: dict[str, list]) -> float:
        """Return the estimate of the leader."""
        leader, parts_of_workers = results["leader"][0], results["worker"]
        print(
            f"pi is about {leader['pi']:.3f}, by workers with {parts_of_workers} parts"
        )
        if sum(parts_of_workers) != leader["parts"]:
            raise ValueError(
                f"the workers have done {parts_of_workers} of {leader['parts']} parts"
            )
        return float(leader["pi"])

    estimate = GangJobOperator(
        task_id="estimate",
        roles={
            "leader": {
                "image": "{{ params.image }}",
                "command": [
                    "python",
                    "/gang/files/estimate_pi.py",
                    "lead",
                    "{{ params.parts }}",
                ],
                "resources": {"cpu": "100m", "memory": "64Mi"},
            },
            "worker": {
                "image": "{{ params.image }}",
                "command": ["python", "/gang/files/estimate_pi.py", "work"],
                "workers": WORKERS,
                "resources": {"cpu": "200m", "memory": "64Mi"},
            },
        },
        files={"estimate_pi.py": "include/estimate_pi.py"},
        results="all",
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    )
    report(estimate.output)


leader_and_workers_gang()
