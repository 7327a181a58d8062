"""A control plane with a gang scheduler and two nodes of 2 CPUs, and namespaces in it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from tests.cluster.control_plane import running_plane
from tests.cluster.node_pool import NodePool
from tests.cluster.tenant import Tenant
from tests.queues.schedulers.build import PROGRAMS
from tests.queues.schedulers.programs import running_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane

RELEASE: Final = "1.34"
"""A release without the Workload API."""
NODES: Final = 2
NODE_CPU: Final = 2
ROLES: Final = Path(__file__).resolve().parents[3] / "airflow_provider_gangjobs" / "rbac"


@dataclass(frozen=True)
class Cluster:
    """A control plane with a gang scheduler: its name, what the provider calls it, and its log file."""

    name: str
    scheduler: str
    plane: ControlPlane
    log: Path


@contextmanager
def with_scheduler(name: str, folder: Path) -> Iterator[Cluster]:
    """The control plane with the scheduler of this name, while the block runs."""
    with (
        running_plane(RELEASE, folder) as plane,
        # A gang that the coscheduling plugin rejects, because it knows only one of the nodes yet, waits five minutes.
        NodePool.running(plane, nodes=NODES, cpu=NODE_CPU),
        running_scheduler(name, plane) as log,
    ):
        yield Cluster(name, PROGRAMS[name].scheduler, plane, log)


@contextmanager
def scheduler_tenant(scheduler: str, plane: ControlPlane, purpose: str) -> Iterator[Tenant]:
    """A namespace whose ServiceAccount has the Role of `rbac.yaml`, and the Role of the scheduler if there is one."""
    with Tenant.created(plane, purpose) as tenant:
        file = ROLES / f"rbac-{scheduler}.yaml"
        if file.exists():
            tenant.grant(yaml.safe_load(file.read_text()))
        yield tenant
