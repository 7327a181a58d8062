"""After: the same DAG with GangJobOperator, with the same models."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.cncf.kubernetes.secret import Secret
from airflow.sdk import dag
from kubernetes.client import models as k8s

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

REPORT = """
import json, os
text = open("/etc/report/title").read()
with open(os.environ["GANG_RESULT_PATH"], "w") as result:
    found = {"title": text, "day": os.environ["DAY"]}
    json.dump({**found, "token": len(os.environ["TOKEN"])}, result)
"""


@dag(schedule=None, catchup=False, tags=["gangjobs"])
def report_gang() -> None:
    GangJobOperator(
        task_id="report",
        name="report",
        namespace="default",
        image="python:3.12-slim",
        command=["python", "-c"],
        args=[REPORT],
        env=[
            k8s.V1EnvVar(name="DAY", value="{{ ds }}"),
            k8s.V1EnvVar(
                name="POD",
                value_from=k8s.V1EnvVarSource(
                    field_ref=k8s.V1ObjectFieldSelector(field_path="metadata.name")
                ),
            ),
        ],
        secrets=[Secret("env", "TOKEN", "report-token", "token")],
        env_from=[
            k8s.V1EnvFromSource(
                config_map_ref=k8s.V1ConfigMapEnvSource(name="report-settings")
            )
        ],
        resources=k8s.V1ResourceRequirements(
            requests={"cpu": "100m", "memory": "64Mi"},
            limits={"cpu": "100m", "memory": "64Mi"},
        ),
        volumes=[
            k8s.V1Volume(
                name="title",
                config_map=k8s.V1ConfigMapVolumeSource(name="report-title"),
            )
        ],
        volume_mounts=[
            k8s.V1VolumeMount(name="title", mount_path="/etc/report", read_only=True)
        ],
        tolerations=[
            k8s.V1Toleration(key="reports", operator="Exists", effect="NoSchedule")
        ],
        affinity=k8s.V1Affinity(
            node_affinity=k8s.V1NodeAffinity(
                preferred_during_scheduling_ignored_during_execution=[
                    k8s.V1PreferredSchedulingTerm(
                        weight=1,
                        preference=k8s.V1NodeSelectorTerm(
                            match_expressions=[
                                k8s.V1NodeSelectorRequirement(
                                    key="disk", operator="In", values=["ssd"]
                                )
                            ]
                        ),
                    )
                ]
            )
        ),
        labels={"team": "reports"},
        assemble_timeout=timedelta(minutes=10),
        execution_timeout=timedelta(minutes=30),
    )


report_gang()
