"""Rendezvous: how the ranks of a gang find each other.

A headless Service that has the name of the Job gives each rank the name `<job>-<rank>.<service>`. The Service publishes
addresses of pods that are not ready, because ranks connect to each other before they are ready. The variables are those
of torch.distributed (MASTER_ADDR, ...) and torchrun (PET_...), and NNODES and NODE_RANK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import ANNOTATION_COMPLETION_INDEX, LABEL_GANG, LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import Rendezvous

RENDEZVOUS_ENV: Final = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "NNODES",
        "NODE_RANK",
        "PET_NNODES",
        "PET_NODE_RANK",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
    }
)
"""Variables that a user must not set while rendezvous is on."""

RANK_VARIABLES: Final = ("RANK", "NODE_RANK", "PET_NODE_RANK")
"""Variables whose value is the rank."""


def env_of(rendezvous: Rendezvous, *, job: str, service: str, size: int) -> list[dict[str, Any]]:
    """Render the variables of every container. The kubelet reads the rank from the pod when the container starts."""
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION_COMPLETION_INDEX}']"}}
    master, port = f"{job}-0.{service}", str(rendezvous.port)
    values = {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(size),
        "NNODES": str(size),
        "PET_NNODES": str(size),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
    }
    ranks = [{"name": name, "valueFrom": rank} for name in RANK_VARIABLES]
    return [{"name": name, "value": value} for name, value in values.items()] + ranks


def service_of(rendezvous: Rendezvous, *, job: str, namespace: str, owner: dict[str, Any]) -> dict[str, Any]:
    """Render the headless Service, which the Job owns."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job,
            "namespace": namespace,
            "labels": {LABEL_GANG: job, LABEL_PURPOSE: ObjectPurpose.RENDEZVOUS.value},
            "ownerReferences": [owner],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_GANG: job},
            "ports": [{"name": "rendezvous", "port": rendezvous.port}],
        },
    }
