"""The clusters on which one DAG file runs unchanged: real control planes with two nodes of 2 CPUs each."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.cluster.control_plane import running_plane
from tests.cluster.node_pool import NodePool
from tests.cluster.tenant import Tenant
from tests.queues.kueue.manager import running_kueue
from tests.queues.schedulers.cluster import RELEASE, scheduler_tenant
from tests.queues.schedulers.programs import running_scheduler
from tests.queues.tenants import kueue_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

QUEUE: Final = "team"


@dataclass(frozen=True)
class TeamCluster:
    """What a team has been given: a namespace in a cluster, and the extras of its connection that differ."""

    tenant: Tenant
    extras: Mapping[str, str]


@contextmanager
def native(folder: Path) -> Iterator[TeamCluster]:
    """The Workload API of Kubernetes 1.37."""
    with (
        running_plane("1.37", folder) as plane,
        NodePool.running(plane, nodes=2, cpu=2),
        Tenant.created(plane, "team") as tenant,
    ):
        yield TeamCluster(tenant, {})


@contextmanager
def kueue(folder: Path) -> Iterator[TeamCluster]:
    """A queue of Kueue whose flavor has a Topology, and plenty of quota."""
    with ExitStack() as stack:
        plane = stack.enter_context(running_plane(RELEASE, folder))
        manager = stack.enter_context(running_kueue(plane, "0.19"))
        stack.enter_context(NodePool.running(plane, nodes=2, cpu=2))
        tenant = stack.enter_context(kueue_tenant(plane, "team"))
        levels = [{"nodeLabel": "kubernetes.io/hostname"}]
        manager.create("topologies", {"metadata": {"name": "nodes"}, "spec": {"levels": levels}})
        flavor = {"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": "nodes"}
        manager.create_queue(tenant.namespace, name=QUEUE, cpu="100", flavor=flavor)
        yield TeamCluster(tenant, {"queue_name": QUEUE})


@contextmanager
def with_scheduler(name: str, folder: Path) -> Iterator[TeamCluster]:
    """A gang scheduler beside the default scheduler."""
    with (
        running_plane(RELEASE, folder) as plane,
        NodePool.running(plane, nodes=2, cpu=2),
        running_scheduler(name, plane),
        scheduler_tenant(name, plane, "team") as tenant,
    ):
        yield TeamCluster(tenant, {"gang_scheduler": name})


CLUSTERS: Final = {
    "native": "Kubernetes 1.37 with the Workload API",
    "kueue": "Kubernetes 1.34 with Kueue 0.19, whose queue has a Topology",
    "volcano": "Kubernetes 1.34 with Volcano 1.14",
    "coscheduling": "Kubernetes 1.34 with the coscheduling plugin 0.34",
    "yunikorn": "Kubernetes 1.34 with YuniKorn 1.8",
}


@contextmanager
def running(name: str, folder: Path) -> Iterator[TeamCluster]:
    """The cluster of this name in `CLUSTERS` while the block runs."""
    if name == "native":
        started = native(folder)
    elif name == "kueue":
        started = kueue(folder)
    else:
        started = with_scheduler(name, folder)
    with started as cluster:
        yield cluster
