"""One pod that waits for a GPU, says why, and runs again after a preemption."""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

with DAG("fit_one_pod", schedule=None):
    GangJobOperator(
        task_id="fit",
        image="registry.example/trainer:2",
        command=["python", "fit.py"],
        resources={"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1},
        queue_timeout=timedelta(hours=12),  # in a queue of Kueue, if there is one
        assemble_timeout=timedelta(hours=2),  # for a node, an image, and volumes
        run_timeout=timedelta(hours=6),
        max_disruptions=3,  # preempted, evicted, or lost with a node: without a retry
        results="rank0",  # what the program writes to $GANG_RESULT_PATH
    )
