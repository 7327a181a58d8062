"""One Airflow on PostgreSQL with two triggerers, and one cluster, for all tests here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.airflow.home import Home
from tests.airflow.postgres.faults import FaultDoor
from tests.airflow.postgres.held import Stage
from tests.airflow.postgres.server import Postgres
from tests.airflow.postgres.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.sandbox.thread import SandboxThread
    from tests.airflow.processes import Airflow

TRIGGERERS = 2
SOON = {
    # How long until Airflow takes a silent process for dead, in seconds: half a minute to five by default.
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres.running() as server:
        yield server


@pytest.fixture(scope="session")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the ranks of gangs look into."""
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="session")
def home(postgres: Postgres, gates: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """An Airflow home whose database is PostgreSQL."""
    path = tmp_path_factory.mktemp("airflow") / "home"
    url = postgres.create_database("airflow")
    home = Home.make(path, database=url, dags=Path(__file__).parent / "dags", **SOON)
    home.environment["GANGJOBS_TEST_GATES"] = str(gates)
    return home


@pytest.fixture(scope="session")
def airflow(connected: Home) -> Iterator[Airflow]:
    with connected.running(triggerers=TRIGGERERS) as airflow:
        yield airflow


@pytest.fixture(scope="session")
def witness(cluster: SandboxThread) -> Witness:
    return Witness.of(cluster)


@pytest.fixture(scope="session")
def door(cluster: SandboxThread) -> Iterator[FaultDoor]:
    with FaultDoor.of(cluster.kubeconfig_path) as door:
        yield door


@pytest.fixture
def stage(airflow: Airflow, witness: Witness, connected: Home, gates: Path, door: FaultDoor) -> Iterator[Stage]:
    """Everything runs, or is about to, when a test begins."""
    stage = Stage(connected, airflow, witness, door, gates)
    yield stage
    stage.recover()
