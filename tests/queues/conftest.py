"""Fixtures: a control plane with the manager of Kueue and two nodes, and namespaces for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.control_plane import running_plane
from tests.cluster.node_pool import NodePool
from tests.cluster.releases import NONE
from tests.queues.jobset.controller import JobSetController, running_job_sets
from tests.queues.kueue.build import RELEASES
from tests.queues.kueue.manager import Kueue, running_kueue
from tests.queues.tenants import kueue_tenant
from tests.side_by_side import group_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

COMBINATIONS = [
    pytest.param(("1.36", "0.15"), id="1.36-kueue-0.15"),
    pytest.param(("1.37", "0.19"), id="1.37-kueue-0.19"),
]
"""Releases of Kubernetes and Kueue. 1.36 has native gangs whose Job cannot change its parallelism."""
CLUSTERS = ("kueue", "bare_kueue", "job_sets", "job_sets_in_queues", "cluster")
"""The fixtures that run a control plane for a group of tests, here and in `schedulers`."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop the control plane of a group after its last test: each one that stays costs a tenth of a core.

    pytest would stop the control plane of a session fixture only at the end of the session.
    """
    yield
    if nextitem is not None and group_of(nextitem.nodeid) == group_of(item.nodeid):
        return
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    for name in CLUSTERS:
        if definitions.get(name):
            definitions[name][-1].finish(item._request)  # type: ignore[attr-defined]


@pytest.fixture(scope="session", params=COMBINATIONS)
def kueue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """The manager of Kueue on a control plane with two nodes of 4 CPUs."""
    release, kueue_release = request.param
    with (
        running_plane(release, tmp_path_factory.mktemp(f"kueue-{release}-")) as plane,
        running_kueue(plane, kueue_release) as kueue,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield kueue


@pytest.fixture(scope="session", params=list(RELEASES), ids=lambda release: f"kueue-{release}")
def bare_kueue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """The manager of Kueue on a control plane without the Workload API, with two nodes of 4 CPUs."""
    with (
        running_plane(NONE, tmp_path_factory.mktemp("kueue-bare-")) as plane,
        running_kueue(plane, request.param) as kueue,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield kueue


@pytest.fixture(scope="session", params=["jobset-0.12"])
def job_sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSetController]:
    """The JobSet controller on a control plane without the Workload API, with two nodes of 4 CPUs."""
    with (
        running_plane(NONE, tmp_path_factory.mktemp("jobset-")) as plane,
        running_job_sets(plane) as controller,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield controller


@pytest.fixture(scope="session", params=["jobset-kueue-0.19"])
def job_sets_in_queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobSetController, Kueue]]:
    """The JobSet controller and the manager of Kueue, which admits JobSets, with two nodes of 4 CPUs."""
    config = {"integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]}}
    with (
        running_plane(NONE, tmp_path_factory.mktemp("jobset-kueue-")) as plane,
        running_job_sets(plane) as controller,
        running_kueue(plane, "0.19", **config) as kueue,
        NodePool.running(plane, nodes=2, cpu=4),
    ):
        yield controller, kueue


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
