"""Simulate heat in rods of several materials, each by a gang of six ranks that exchange edges in every step.

The gangs are mapped over the materials and submitted together. A cluster with room for only one of them runs them
one after the other: a gang that does not fit holds nothing, so no two of them can wait for each other half-started.
The image needs Python, and nothing else.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

DIFFUSIVITIES = {"copper": 1.11, "iron": 0.23, "glass": 0.0034}
"""In square centimetres a second."""


@dag(
    schedule=None, catchup=False, tags=["gangjobs"], params={"image": "python:3.12-slim", "points": 12}, doc_md=__doc__
)
def simulate_heat_gangs() -> None:
    @task
    def commands(*, params: dict | None = None) -> list[list[str]]:
        """A rod of each material, until it has lost about two thirds of its heat."""
        assert params is not None, "Airflow gives them"
        program = ["python", "/gang/files/heat.py", f"--points={int(params['points'])}"]
        return [[*program, f"--diffusivity={value}", f"--until={0.1 / value}"] for value in DIFFUSIVITIES.values()]

    @task
    def report(rods: list[list[dict]]) -> dict[str, float]:
        """The largest error of each rod; a gang whose ranks had not exchanged their edges would be far off."""
        errors = {name: max(rank["error"] for rank in rod) for name, rod in zip(DIFFUSIVITIES, rods, strict=True)}
        for name, error in errors.items():
            print(f"{name:>8}: largest error {error:.6f}")
        if max(errors.values()) > 0.001:
            raise ValueError(f"the simulation is off: {errors}")
        return errors

    simulate = GangJobOperator.partial(
        task_id="simulate",
        image="{{ params.image }}",
        workers=6,
        resources={"cpu": "1", "memory": "64Mi"},
        files={"heat.py": "include/heat.py"},
        results="all",
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    ).expand(command=commands())
    report(simulate.output)


simulate_heat_gangs()
