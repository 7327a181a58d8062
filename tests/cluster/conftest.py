"""Fixtures: a real control plane of each release, with nodes that run pods as local processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.service import GangService
from tests.cluster.control_plane import running_plane
from tests.cluster.controlplane.build import RELEASES
from tests.cluster.node_pool import NodePool
from tests.cluster.releases import WITHOUT_GANGS
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.cluster.control_plane import ControlPlane


@pytest.fixture(scope="session", params=RELEASES)
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of each release."""
    release: str = request.param
    with running_plane(release, tmp_path_factory.mktemp(f"plane-{release}-")) as plane:
        yield plane


@pytest.fixture(scope="session")
def node_pool(plane: ControlPlane) -> Iterator[NodePool]:
    """Two nodes of 4 CPUs that have joined the control plane."""
    with NodePool.running(plane, nodes=2, cpu=4) as node_pool:
        yield node_pool


@pytest.fixture
def tenant(plane: ControlPlane, node_pool: NodePool, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace for one test, and a ServiceAccount that is bound to exactly the documented Role."""
    with Tenant.created(plane, request.node.name) as tenant:
        yield tenant


@pytest.fixture
async def gangs(tenant: Tenant) -> AsyncIterator[GangService]:
    async with GangService.connect(tenant.config) as gangs:
        yield gangs


@pytest.fixture(scope="session")
def native_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of 1.37 whose Job controller creates Workloads and PodGroups, with nodes."""
    folder = tmp_path_factory.mktemp("native-1.37-")
    with running_plane("1.37", folder, workload_with_job=True) as plane, NodePool.running(plane, nodes=1, cpu=4):
        yield plane


@pytest.fixture
def native_tenant(native_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """The same as `tenant`, on the native plane."""
    with Tenant.created(native_plane, request.node.name) as tenant:
        yield tenant


@pytest.fixture(scope="session", params=WITHOUT_GANGS)
def bare_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without gang scheduling, with two nodes of 4 CPUs: the newest release, and older releases."""
    release: str = request.param
    folder = tmp_path_factory.mktemp(f"bare-{release}-")
    with running_plane(release, folder) as plane, NodePool.running(plane, nodes=2, cpu=4):
        yield plane


@pytest.fixture
def bare_tenant(bare_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """The same as `tenant`, on a plane without gang scheduling."""
    with Tenant.created(bare_plane, request.node.name) as tenant:
        yield tenant
