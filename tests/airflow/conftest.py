"""Fixtures: one Airflow home and one embedded cluster for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import SandboxThread, running
from tests.airflow.airflow_home import AirflowHome
from tests.airflow.statsd import Exporter, receiving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHome]:
    """An Airflow home without processes, but for a fork server, which starts when a test uses it."""
    home = AirflowHome.make(tmp_path_factory.mktemp("airflow") / "home")
    with home.fork_server():
        yield home


@pytest.fixture(scope="session")
def cluster() -> Iterator[SandboxThread]:
    """A cluster of two nodes."""
    with running(SandboxConfig(nodes=2)) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def connected(home: AirflowHome, cluster: SandboxThread) -> AirflowHome:
    """The home, with a connection `kubernetes_default` to the cluster."""
    home.add_cluster("kubernetes_default", cluster.kubeconfig_path)
    return home


@pytest.fixture(scope="module")
def exporter() -> Iterator[Exporter]:
    """Receives metrics."""
    with receiving() as exporter:
        yield exporter
