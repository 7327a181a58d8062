"""Train on a gang of two ranks that keeps its place: a failed program starts again in
its pods, from its checkpoint.

The checkpoints are on the disk of a node here, so that a sandbox can run the DAG. On a
cluster with several nodes, give a PersistentVolumeClaim that all nodes can mount:
`checkpoints="pvc://CLAIM/PATH"`, and no `volumes`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator


@dag(
    schedule=None,
    catchup=False,
    tags=["gangjobs"],
    params={"steps": 100, "folder": "/tmp/gangjobs-checkpoints"},
    doc_md=__doc__,
)
def resume_training_gang() -> None:
    @task
    def average(lines: list[dict]) -> dict:
        """Return the mean of the lines of all ranks."""
        line = {
            name: sum(each[name] for each in lines) / len(lines)
            for name in ("slope", "offset")
        }
        print(
            f"the line of {len(lines)} ranks: "
            f"{line['slope']:.2f} x + {line['offset']:.2f}"
        )
        return line

    train = GangJobOperator(
        task_id="train",
        image="python:3.12-slim",
        command=[
            "python",
            "/gang/files/train_resumable.py",
            "--steps",
            "{{ params.steps }}",
        ],
        files={"train_resumable.py": "include/train_resumable.py"},
        workers=2,
        resources={"cpu": "100m", "memory": "64Mi"},
        volumes=[
            {
                "name": "disk",
                "hostPath": {
                    "path": "{{ params.folder }}",
                    "type": "DirectoryOrCreate",
                },
            }
        ],
        checkpoints="volume://disk",
        restarts=3,
        progress_timeout=timedelta(minutes=5),
        max_disruptions=3,
        results="all",
        assemble_timeout=timedelta(minutes=30),
        run_timeout=timedelta(minutes=10),
    )
    average(train.output)


resume_training_gang()
