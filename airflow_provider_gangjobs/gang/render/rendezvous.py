"""Rendezvous: how the ranks of a gang find each other.

A headless Service named after the Job gives each rank the name `<job>-<rank>.<service>`. It publishes
addresses before pods are ready, because ranks meet before any of them is. The variables are those of
torch.distributed (MASTER_ADDR ...), of torchrun (PET_...) and plain NNODES and NODE_RANK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import ANNOTATION_COMPLETION_INDEX, LABEL_GANG, LABEL_ROLE, Role

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
"""Names that a user may not set while rendezvous is on."""


def env_of(rendezvous: Rendezvous, *, job: str, service: str, size: int) -> list[dict[str, Any]]:
    """The variables of every container. The rank is read from the pod when it starts."""
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
    ranks = [{"name": name, "valueFrom": rank} for name in ("RANK", "NODE_RANK", "PET_NODE_RANK")]
    return [{"name": name, "value": value} for name, value in values.items()] + ranks


def service_of(rendezvous: Rendezvous, *, job: str, namespace: str, owner: dict[str, Any]) -> dict[str, Any]:
    """The headless Service, owned by the Job."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job,
            "namespace": namespace,
            "labels": {LABEL_GANG: job, LABEL_ROLE: Role.RENDEZVOUS.value},
            "ownerReferences": [owner],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_GANG: job},
            "ports": [{"name": "rendezvous", "port": rendezvous.port}],
        },
    }
