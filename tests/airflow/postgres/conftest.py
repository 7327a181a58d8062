"""One Airflow on PostgreSQL with two triggerers, and one cluster, for all tests of the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.airflow.airflow_home import AirflowHome
from tests.airflow.postgres.cluster_history import ClusterHistory
from tests.airflow.postgres.faults import FaultClient
from tests.airflow.postgres.held_runs import AirflowDeployment
from tests.airflow.postgres.server import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.postgres.held_runs import HeldRun
    from tests.airflow.processes import Airflow

TRIGGERERS = 2
SHORT_TIMEOUTS = {
    # After so many seconds without a heartbeat, Airflow considers a triggerer or a task dead. The defaults are 30 s and
    # 300 s. Much shorter times would fail on a busy machine. The time of the scheduler stays at its default, because a
    # scheduler that considers itself dead starts all of its tasks again.
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    # How often the supervisor of a worker looks at its process. Triggers delay their event that long (airflow#72716).
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    # Some tests stop a worker, which then occupies a slot.
    "CORE__PARALLELISM": "6",
}

SECRETS = ("variable-s3cr3t-1", "item-s3cr3t-2", "password-s3cr3t-3", "extra-s3cr3t-4")
"""The secrets of the variables and of the connection of the DAG `secrets`."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres.running() as server:
        yield server


@pytest.fixture(scope="session")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the ranks of gangs wait for a file."""
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="session")
def home(postgres: Postgres, gates: Path, tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    """An Airflow home whose database is PostgreSQL."""
    path = tmp_path_factory.mktemp("airflow") / "home"
    url = postgres.create_database("airflow")
    home = AirflowHome.make(path, database=url, dags=Path(__file__).parent / "dags", **SHORT_TIMEOUTS)
    home.environment["GANGJOBS_TEST_GATES"] = str(gates)
    home.environment |= {
        "AIRFLOW_VAR_SOME_PASSWORD": SECRETS[0],
        "AIRFLOW_VAR_CREDS_SECRET": json.dumps({"token": SECRETS[1]}),
        "AIRFLOW_CONN_DB_CONN": json.dumps(
            {"conn_type": "postgres", "host": "h", "password": SECRETS[2], "extra": {"api_key": SECRETS[3]}}
        ),
    }
    return home


@pytest.fixture(scope="session")
def airflow(connected: AirflowHome) -> Iterator[Airflow]:
    with connected.running(triggerers=TRIGGERERS) as airflow:
        yield airflow


@pytest.fixture(scope="session")
def cluster_history(cluster: SandboxThread) -> ClusterHistory:
    return ClusterHistory.of(cluster)


@pytest.fixture(scope="session")
def faults(cluster: SandboxThread) -> Iterator[FaultClient]:
    with FaultClient.of(cluster.kubeconfig_path) as client:
        yield client


@pytest.fixture(scope="module")
def deployment(
    airflow: Airflow, cluster_history: ClusterHistory, connected: AirflowHome, gates: Path, faults: FaultClient
) -> Iterator[AirflowDeployment]:
    deployment = AirflowDeployment(connected, airflow, cluster_history, faults, gates)
    yield deployment
    deployment.clear_up()


@pytest.fixture(autouse=True)
def everything_runs_again(deployment: AirflowDeployment) -> Iterator[None]:
    """Start what a test has stopped or killed before the next test."""
    yield
    deployment.airflow.revive()


@pytest.fixture
def held(gangs: Iterator[HeldRun]) -> HeldRun:
    """A gang for each test that runs, or will run soon. The module starts all its `gangs` at once to save time."""
    return next(gangs)
