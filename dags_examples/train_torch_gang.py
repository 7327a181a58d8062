"""Train a network with PyTorch on a gang of two ranks: `launch="torchrun"` starts the
processes of each rank.

The image needs PyTorch. With GPUs, add them to `resources`: each rank then runs one
process for each of its GPUs.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.gang.spec import Rendezvous
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"image": "registry.example/pytorch:2", "steps": 200},
    doc_md=__doc__,
)
def train_torch_gang() -> None:
    @task
    def check(fit: dict) -> float:
        """Return the last loss."""
        loss = fit["losses"][-1]
        print(
            f"{fit['processes']} processes with PyTorch {fit['torch']}: "
            f"loss {loss:.6f} on {fit['points']} points"
        )
        if loss > 0.05:
            raise ValueError(f"the network does not fit the curve: {fit}")
        return loss

    fit = GangJobOperator(
        task_id="fit",
        launch="torchrun",
        image="{{ params.image }}",
        command=["/gang/files/train_torch.py", "--steps", "{{ params.steps }}"],
        files={"train_torch.py": "include/train_torch.py"},
        workers=2,
        # torchrun listens on all addresses, and all gangs of a sandbox have one
        # network: each needs a port of its own.
        rendezvous=Rendezvous(port=29400),
        resources={"cpu": "500m", "memory": "2Gi"},
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
        max_disruptions=3,
    )
    check(fit.output)


train_torch_gang()
