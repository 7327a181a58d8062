"""Simulate heat in rods of several materials, each with a gang of six ranks that
exchange edge values in every step.

The task is mapped over the materials, so Airflow submits the gangs together. A cluster
with room for one gang runs the gangs one after the other. A gang that does not fit
occupies no resources, so two partly started gangs cannot block each other. The image
needs only Python.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

DIFFUSIVITIES = {"copper": 1.11, "iron": 0.23, "glass": 0.0034}
"""Thermal diffusivities in square centimetres per second."""


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "python:3.12-slim", "points": 12},
    doc_md=__doc__,
)
def simulate_heat_gangs() -> None:
    @task
    def commands(*, params: dict | None = None) -> list[list[str]]:
        """Return a command for each material. The simulation ends when the rod has lost
        two thirds of its heat.
        """
        assert params is not None, "Airflow passes params"
        program = ["python", "/gang/files/heat.py", f"--points={int(params['points'])}"]
        return [
            [*program, f"--diffusivity={value}", f"--until={0.1 / value}"]
            for value in DIFFUSIVITIES.values()
        ]

    @task
    def report(rods: list[list[dict]]) -> dict[str, float]:
        """Return the largest error of each rod. Without the exchange of edge values the
        error would be large.
        """
        errors = {
            name: max(rank["error"] for rank in rod)
            for name, rod in zip(DIFFUSIVITIES, rods, strict=True)
        }
        for name, error in errors.items():
            print(f"{name:>8}: largest error {error:.6f}")
        if max(errors.values()) > 0.001:
            raise ValueError(f"the errors of the simulation are too large: {errors}")
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
