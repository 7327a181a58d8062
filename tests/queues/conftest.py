"""Fixtures: a control plane with what manages or places its gangs, and namespaces for tests.

One such cluster runs at a time in each process of pytest: its fixture is one fixture with many parameters, and pytest
ends a fixture before it sets the fixture up with another parameter.
"""

from __future__ import annotations

from contextlib import contextmanager
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


@contextmanager
def with_kueue(release: str, kueue_release: str, folder: Path) -> Iterator[Kueue]:
    """The manager of Kueue on a control plane with two nodes of 4 CPUs."""
    with (
        running_plane(release, folder) as plane,
        running_kueue(plane, kueue_release) as kueue,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield kueue


@contextmanager
def with_job_sets(folder: Path) -> Iterator[JobSetController]:
    """The JobSet controller on a control plane without the Workload API, with two nodes of 4 CPUs."""
    with (
        running_plane(NONE, folder) as plane,
        running_job_sets(plane) as controller,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield controller


@contextmanager
def with_job_sets_in_queues(folder: Path) -> Iterator[tuple[JobSetController, Kueue]]:
    """The JobSet controller and the manager of Kueue, which admits JobSets, with two nodes of 4 CPUs."""
    with (
        running_plane(NONE, folder) as plane,
        running_job_sets(plane) as controller,
        running_kueue(plane, "0.19", **ADMITS_JOB_SETS) as kueue,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield controller, kueue


@contextmanager
def with_job_set_kueue(release: str, kueue_release: str, folder: Path) -> Iterator[Kueue]:
    """The manager of Kueue, which admits JobSets, and the JobSet controller, with two nodes of 4 CPUs."""
    with (
        running_plane(release, folder) as plane,
        running_job_sets(plane),
        running_kueue(plane, kueue_release, **ADMITS_JOB_SETS) as kueue,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield kueue


CLUSTERS: Final[dict[str, dict[str, Callable[[Path], AbstractContextManager[Any]]]]] = {
    # 1.36 has native gangs whose Job cannot change its parallelism.
    "kueue": {
        "1.36-kueue-0.15": partial(with_kueue, "1.36", "0.15"),
        "1.37-kueue-0.19": partial(with_kueue, "1.37", "0.19"),
    },
    "bare_kueue": {f"kueue-{release}": partial(with_kueue, NONE, release) for release in RELEASES},
    "job_sets": {"jobset-0.12": with_job_sets},
    "job_sets_in_queues": {"jobset-kueue-0.19": with_job_sets_in_queues},
    "job_set_kueue": {
        "roles-1.36-kueue-0.15": partial(with_job_set_kueue, "1.36", "0.15"),
        "roles-1.37-kueue-0.19": partial(with_job_set_kueue, "1.37", "0.19"),
    },
    "cluster": {name: partial(with_scheduler, name) for name in PROGRAMS},
}
"""The clusters of each fixture, by their names in the ids of the tests (`tests/side_by_side.py`)."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each cluster of the fixture that it uses, or on those that its mark `parametrize` names."""
    marks = metafunc.definition.iter_markers("parametrize")
    if any("running_cluster" in mark.args[0] for mark in marks):
        return
    for fixture, clusters in CLUSTERS.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize("running_cluster", list(clusters), indirect=True)


@pytest.fixture(scope="session")
def running_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The cluster of this name."""
    name: str = request.param
    (start,) = (clusters[name] for clusters in CLUSTERS.values() if name in clusters)
    with start(tmp_path_factory.mktemp(f"{name}-")) as running:
        yield running


@pytest.fixture(scope="session")
def kueue(running_cluster: Kueue) -> Kueue:
    """The manager of Kueue on a control plane with the Workload API."""
    return running_cluster


@pytest.fixture(scope="session")
def bare_kueue(running_cluster: Kueue) -> Kueue:
    """The manager of Kueue on a control plane without the Workload API."""
    return running_cluster


@pytest.fixture(scope="session")
def job_sets(running_cluster: JobSetController) -> JobSetController:
    """The JobSet controller on a control plane without the Workload API."""
    return running_cluster


@pytest.fixture(scope="session")
def job_sets_in_queues(running_cluster: tuple[JobSetController, Kueue]) -> tuple[JobSetController, Kueue]:
    """The JobSet controller and the manager of Kueue, which admits JobSets."""
    return running_cluster


@pytest.fixture(scope="session")
def job_set_kueue(running_cluster: Kueue) -> Kueue:
    """The manager of Kueue, which admits JobSets, beside the JobSet controller on a plane with the Workload API."""
    return running_cluster


@pytest.fixture(scope="session")
def cluster(running_cluster: Cluster) -> Cluster:
    """A gang scheduler beside the default scheduler of a control plane without the Workload API."""
    return running_cluster


@pytest.fixture
def bare_tenant(bare_kueue: Kueue, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """The same as `tenant`, on the control plane without the Workload API."""
    with kueue_tenant(bare_kueue.plane, request.node.name) as tenant:
        yield tenant


@pytest.fixture
def plane(kueue: Kueue) -> ControlPlane:
    """The control plane."""
    return kueue.plane


@pytest.fixture
def tenant(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace for one test, and a ServiceAccount that has exactly the documented rights."""
    with kueue_tenant(plane, request.node.name) as tenant:
        yield tenant
