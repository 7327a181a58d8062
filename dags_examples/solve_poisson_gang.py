"""Solve the Poisson equation with MPI: `mpirun` starts six processes on a gang of three
ranks (`launch="mpi"`).

Each process computes some rows of a grid and exchanges edge values with its neighbours
in every iteration. The image needs Open MPI, sshd and mpi4py. The Secret `mpi-ssh` has
the key by which the ranks reach each other (docs/mpi.md).
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "registry.example/mpi:1", "python": "python3", "points": 16},
    doc_md=__doc__,
)
def solve_poisson_gang() -> None:
    @task
    def check(solution: dict) -> float:
        """Return the error of the solution."""
        print(f"{solution['processes']} processes on {', '.join(solution['hosts'])}")
        if solution["error"] > 1e-9:
            raise ValueError(f"the solution is not accurate: {solution}")
        return solution["error"]

    solve = GangJobOperator(
        task_id="solve",
        launch="mpi",
        image="{{ params.image }}",
        command=[
            "mpirun",
            "{{ params.python }}",
            "/gang/files/poisson.py",
            "{{ params.points }}",
        ],
        files={"poisson.py": "include/poisson.py"},
        workers=3,
        slots_per_worker=2,
        ssh_secret="mpi-ssh",
        resources={"cpu": "500m", "memory": "256Mi"},
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    )
    check(solve.output)


solve_poisson_gang()
