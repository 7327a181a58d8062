"""The configuration of a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.kube import quantity

if TYPE_CHECKING:
    from decimal import Decimal
    from pathlib import Path

    from .isolation import Isolation

__all__ = ["GPU", "NodeConfig"]

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class NodeConfig:
    """One node.

    `root_dir` is the node's alone and holds everything of its pods; a node that starts on a folder of an
    earlier one adopts what is in it. `isolation` None means the best that the machine offers. Containers
    that `outlive_node` go on when the node program ends, as under a kubelet; otherwise they are killed
    with it, however it ends. With a `log_port` (0 takes a free one) the node serves logs to a control plane that
    fetches them from its nodes; everyone on this machine can read them there, unless `log_client_authority`, a PEM
    file, names whose certificates a client must have. Times are in seconds.
    """

    name: str
    root_dir: Path
    cpu: str | float = 4
    memory: str | int = "8Gi"
    gpu: int = 0
    pods: int = 110
    labels: dict[str, str] = field(default_factory=dict)
    isolation: Isolation | None = None
    passed_env: tuple[str, ...] = ()
    outlive_node: bool = False
    log_port: int | None = None
    log_client_authority: Path | None = None
    lease_renewal_s: float = 10.0
    status_interval_s: float = 300.0
    retry_s: float = 2.0
    crash_backoff_s: float = 10.0
    log_bytes_max: int = 10 * 1024 * 1024

    def capacity(self) -> dict[str, str]:
        """As a ResourceList of the Node object. Raises ValueError for something that is no quantity."""
        counted = {
            "cpu": quantity.format_cpu(quantity.parse(self.cpu)),
            "memory": quantity.format_bytes(quantity.parse(self.memory)),
            "pods": str(self.pods),
        }
        return {**counted, GPU: str(self.gpu)} if self.gpu else counted

    def allocatable(self) -> dict[str, Decimal]:
        return quantity.parse_list(self.capacity())
