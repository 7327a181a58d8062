"""Real control planes for tests: one of each release a session, with nodes that run pods as local processes."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.cluster.controlplane.build import RELEASES, binary, is_current
from tests.cluster.farm import Farm
from tests.cluster.plane import ControlPlane
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

HOW_TO_GET_THEM = "run `make clusters` (needs Go), or point GANGJOBS_KUBE_ASSETS at prebuilt control planes"


@pytest.fixture(scope="session", params=RELEASES)
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of each release. Without its binary the test is skipped, except in CI."""
    release: str = request.param
    if not is_current(release):
        missing = f"no control plane of Kubernetes {release}: {HOW_TO_GET_THEM}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp(f"plane-{release}-")
    plane = ControlPlane(release, binary(release), folder)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder / "etcd", ignore_errors=True)


@pytest.fixture(scope="session")
def farm(plane: ControlPlane) -> Iterator[Farm]:
    """Two nodes of 4 CPUs that have joined the control plane."""
    with Farm.running(plane, nodes=2, cpu=4) as farm:
        yield farm


@pytest.fixture
def tenant(plane: ControlPlane, farm: Farm, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace of the test's own, as a ServiceAccount that is bound to exactly the documented Role."""
    with Tenant.admitted(plane, request.node.name) as tenant:
        yield tenant
