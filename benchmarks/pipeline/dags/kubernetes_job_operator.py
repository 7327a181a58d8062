"""Mapped Jobs of two pods with `KubernetesJobOperator`, deferrable, with the defaults of its provider."""

from __future__ import annotations

from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.sdk import DAG
from kubernetes.client import models as k8s

from benchmarks.pipeline.sizes import PEER, TASK_ID, sizes

for dag_id, gangs in sizes(PEER).items():
    with DAG(dag_id, schedule=None):
        KubernetesJobOperator.partial(
            task_id=TASK_ID,
            name="g-{{ ti.map_index }}",
            image="registry.example/train:1",
            cmds=["python", "train.py"],
            parallelism=2,
            completions=2,
            completion_mode="Indexed",
            backoff_limit=0,
            container_resources=k8s.V1ResourceRequirements(requests={"cpu": "10m", "memory": "16Mi"}),
            wait_until_job_complete=True,
            deferrable=True,
            # The operator lists the pods four times without a pause and then fails. A Job controller that shares two
            # cores with Airflow needs longer to create them.
            discover_pods_retry_number=1000,
        ).expand(env_vars=[{"NUMBER": str(number)} for number in range(gangs)])
