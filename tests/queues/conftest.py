"""Fixtures: a control plane with what manages or places its gangs, and namespaces for tests.

One such cluster runs at a time in each process of pytest: its fixture is one fixture with many parameters, and pytest
ends a fixture before it sets the fixture up with another parameter. A test uses the fixture `kueue`, `job_sets` or
`cluster`, and the mark `clusters` chooses other clusters than the ones that this fixture has by default.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.cluster.control_plane import running_plane
from tests.cluster.node_pool import NodePool
from tests.cluster.releases import NONE
from tests.queues.jobset.controller import JobSetController, running_job_sets
from tests.queues.kueue.build import RELEASES
from tests.queues.kueue.manager import Kueue, running_kueue
from tests.queues.schedulers.build import PROGRAMS
from tests.queues.schedulers.cluster import with_scheduler
from tests.queues.tenants import kueue_tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant
    from tests.queues.schedulers.cluster import Cluster


ADMITS_JOB_SETS: Final[dict[str, Any]] = {"integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]}}
"""The part of the configuration of Kueue that lets it admit JobSets, as it does by default."""


READY_WITHIN_S: Final = 8
"""How long Kueue waits in the clusters of the mark `impatient_kueue` until all pods of a gang are ready."""
IMPATIENT: Final[dict[str, Any]] = {
    "waitForPodsReady": {
        "timeout": f"{READY_WITHIN_S}s",
        "recoveryTimeout": "4s",
        "requeuingStrategy": {"backoffLimitCount": 3, "backoffBaseSeconds": 1},
    }
}
"""The part of the configuration of Kueue that lets it stop gangs whose pods are not ready."""
OBSERVANT: Final[dict[str, Any]] = {"featureGates": {"UnadmittedWorkloadsObservability": True}}
"""The part of the configuration of Kueue that is the default in 0.20."""


@dataclass(frozen=True)
class QueueCluster:
    """What manages the Jobs of a control plane."""

    kueue: Kueue | None
    job_sets: JobSetController | None


@contextmanager
def with_queues(
    release: str, folder: Path, *, kueue: str | None = None, job_sets: bool = False, **config: Any
) -> Iterator[QueueCluster]:
    """A control plane with two nodes of 4 CPUs, with this release of Kueue and with the JobSet controller.

    :param config: Parts of the configuration of Kueue.
    """
    with ExitStack() as stack:
        plane = stack.enter_context(running_plane(release, folder))
        controller = stack.enter_context(running_job_sets(plane)) if job_sets else None
        config = {**config, **(ADMITS_JOB_SETS if job_sets else {})}
        manager = stack.enter_context(running_kueue(plane, kueue, **config)) if kueue else None
        stack.enter_context(NodePool.running(plane, nodes=2, cpu=4))
        yield QueueCluster(manager, controller)


CLUSTERS: Final[dict[str, dict[str, Callable[[Path], AbstractContextManager[Any]]]]] = {
    # 1.36 has native gangs whose Job cannot change its parallelism.
    "kueue": {
        "1.36-kueue-0.15": partial(with_queues, "1.36", kueue="0.15"),
        "1.37-kueue-0.19": partial(with_queues, "1.37", kueue="0.19"),
    },
    "bare_kueue": {f"kueue-{release}": partial(with_queues, NONE, kueue=release) for release in RELEASES},
    "impatient_kueue": {
        "impatient-1.37-kueue-0.19": partial(with_queues, "1.37", kueue="0.19", **IMPATIENT, **OBSERVANT)
    },
    "job_sets": {"jobset-0.12": partial(with_queues, NONE, job_sets=True)},
    "bare_job_set_kueue": {"jobset-kueue-0.19": partial(with_queues, NONE, kueue="0.19", job_sets=True)},
    "job_set_kueue": {
        "roles-1.36-kueue-0.15": partial(with_queues, "1.36", kueue="0.15", job_sets=True),
        "roles-1.37-kueue-0.19": partial(with_queues, "1.37", kueue="0.19", job_sets=True),
    },
    "cluster": {name: partial(with_scheduler, name) for name in PROGRAMS},
}
"""The clusters of each fixture and mark, by their names in the ids of the tests (`tests/side_by_side.py`). The name
`bare` means a control plane without the Workload API."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each cluster of its mark `clusters` or of its fixture, or on those that `parametrize` names."""
    definition = metafunc.definition
    if "running_cluster" not in metafunc.fixturenames:
        return
    if any("running_cluster" in mark.args[0] for mark in definition.iter_markers("parametrize")):
        return
    mark = definition.get_closest_marker("clusters")
    name = mark.args[0] if mark else next(name for name in CLUSTERS if name in metafunc.fixturenames)
    metafunc.parametrize("running_cluster", list(CLUSTERS[name]), indirect=True)


@pytest.fixture(scope="session")
def running_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The cluster of this name."""
    name: str = request.param
    (start,) = (clusters[name] for clusters in CLUSTERS.values() if name in clusters)
    with start(tmp_path_factory.mktemp(f"{name}-")) as running:
        yield running


@pytest.fixture(scope="session")
def kueue(running_cluster: QueueCluster) -> Kueue:
    """The manager of Kueue."""
    assert running_cluster.kueue is not None
    return running_cluster.kueue


@pytest.fixture(scope="session")
def job_sets(running_cluster: QueueCluster) -> JobSetController:
    """The JobSet controller."""
    assert running_cluster.job_sets is not None
    return running_cluster.job_sets


@pytest.fixture(scope="session")
def cluster(running_cluster: Cluster) -> Cluster:
    """A gang scheduler beside the default scheduler of a control plane without the Workload API."""
    return running_cluster


@pytest.fixture
def plane(kueue: Kueue) -> ControlPlane:
    """The control plane."""
    return kueue.plane


@pytest.fixture
def tenant(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace for one test, and a ServiceAccount that has exactly the documented rights."""
    with kueue_tenant(plane, request.node.name) as tenant:
        yield tenant


@pytest.fixture
def queue(kueue: Kueue, tenant: Tenant) -> str:
    """The ClusterQueue of the queue `team`, which has a quota of 4 CPUs."""
    return kueue.create_queue(tenant.namespace)
