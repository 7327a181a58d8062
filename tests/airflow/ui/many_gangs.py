"""Gangs of many DAGs, written into a cluster without running their tasks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from benchmarks.list_gangs import job_of_task

if TYPE_CHECKING:
    from pathlib import Path

TEAMS: Final = ("red", "blue")
DAGS: Final = tuple(f"{team}-{number}" for team in TEAMS for number in range(10))
"""The DAGs of `dags/teams.py`."""
AT_ONCE: Final = 20


def write_gangs(kubeconfig: Path, namespace: str, *, count: int) -> None:
    """Write gangs that wait in a queue of their team, the same number for each DAG."""
    asyncio.run(_write(ClusterConfig.from_extras("test", {"kube_config_path": str(kubeconfig)}), namespace, count))


async def _write(config: ClusterConfig, namespace: str, count: int) -> None:
    slots = asyncio.Semaphore(AT_ONCE)
    async with Client(config) as client:

        async def write(number: int) -> None:
            dag_id = DAGS[number % len(DAGS)]
            key = TaskKey(dag_id, f"manual__{number // len(DAGS):04}", "gang")
            job = job_of_task(key, namespace)
            job["spec"]["suspend"] = True
            job["metadata"]["labels"] = {**job["metadata"]["labels"], LABEL_KUEUE_QUEUE: f"queue-of-{dag_id[:-2]}"}
            async with slots:
                await client.create(JOBS, job, namespace)

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(write(number))
