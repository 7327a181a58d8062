"""Disruptions that a cluster causes: the eviction of a pod, and the loss of a node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.kube.well_known import LABEL_DAG_ID
from gangjobs_sandbox.resources import NODES, PODS
from tests.airflow.polling import wait_for

if TYPE_CHECKING:
    from gangjobs_sandbox.cluster import Sandbox
    from gangjobs_sandbox.thread import SandboxThread


def evict_one_of(cluster: SandboxThread, dag_id: str, *, ranks: int) -> None:
    """Evict a pod, as a drain does, as soon as the gang of a DAG runs, with this many ranks."""
    victim = _running(cluster, dag_id, ranks)
    cluster.call(lambda it: it.registry.evict(victim, "default"))


def lose_a_node_of(cluster: SandboxThread, dag_id: str, *, ranks: int) -> None:
    """As soon as the gang of a DAG runs, with this many ranks, stop and remove one of its nodes."""
    victim = _running(cluster, dag_id, ranks)

    def lose(it: Sandbox) -> None:
        node = it.registry.get(PODS, victim, "default")["spec"]["nodeName"]
        (kubelet,) = (task for task in asyncio.all_tasks() if task.get_name() == node)
        kubelet.cancel()
        it.registry.delete(NODES, node)

    cluster.call(lose)


def _running(cluster: SandboxThread, dag_id: str, ranks: int) -> str:
    """Return the name of a pod as soon as all ranks run."""

    def look(it: Sandbox) -> str | None:
        pods = it.registry.list(PODS, label_selector=f"{LABEL_DAG_ID}={dag_id}")
        names = [str(pod["metadata"]["name"]) for pod in pods if pod["status"].get("phase") == "Running"]
        return names[0] if len(names) == ranks else None

    return wait_for(f"{ranks} running ranks of {dag_id}", lambda: cluster.call(look))
