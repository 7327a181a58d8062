"""The configuration of a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangjobs_sandbox.apimachinery import quantity

if TYPE_CHECKING:
    from decimal import Decimal
    from pathlib import Path

    from gangjobs_sandbox.node.isolation import Isolation

__all__ = ["GPU", "NodeConfig"]

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class NodeConfig:
    """The configuration of one node. Times are in seconds.

    Args:
        root_dir: the folder of this node only. It holds all data of the node's pods. A node that starts on the folder
            of an earlier node adopts its content.
        isolation: None selects the best isolation that the machine offers.
        outlive_node: containers continue when the node program ends, as under a kubelet. Otherwise they are killed when
            the node program ends in any way.
        log_port: the node serves logs on this port to a control plane that fetches logs from its nodes. 0 selects a
            free port. Every user of this machine can read these logs, unless `log_client_authority` is set.
        log_client_authority: a PEM file with the CA that must have signed the certificates of log clients.
    """

    name: str
    root_dir: Path
    cpu: str | float = 4
    memory: str | int = "8Gi"
    gpu: int = 0
    pods: int = 110
    labels: dict[str, str] = field(default_factory=dict)
    isolation: Isolation | None = None
    outlive_node: bool = False
    log_port: int | None = None
    log_client_authority: Path | None = None
    lease_renewal_s: float = 10.0
    status_interval_s: float = 300.0
    retry_s: float = 2.0
    crash_backoff_s: float = 10.0
    eviction_interval_s: float = 10.0
    log_bytes_max: int = 10 * 1024 * 1024

    def capacity(self) -> dict[str, str]:
        """Return the capacity as a ResourceList of the Node object. Raises ValueError for an invalid quantity."""
        counted = {
            "cpu": quantity.format_cpu(quantity.parse(self.cpu)),
            "memory": quantity.format_bytes(quantity.parse(self.memory)),
            "pods": str(self.pods),
        }
        return {**counted, GPU: str(self.gpu)} if self.gpu else counted

    def allocatable(self) -> dict[str, Decimal]:
        return quantity.parse_list(self.capacity())
