"""Two installations of Airflow run the same DAG under the same run id in one namespace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.kube.well_known import LABEL_INSTALLATION
from tests.airflow.airflow_home import AirflowHome
from tests.airflow.polling import wait_for
from tests.airflow.postgres.conftest import SHORT_TIMEOUTS
from tests.airflow.postgres.held_runs import FOLLOWED
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.api import DagRun
    from tests.airflow.postgres.cluster_history import ClusterHistory
    from tests.airflow.postgres.server import Postgres
    from tests.airflow.processes import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3 * AIRFLOW_TIMEOUT_S)]

NAMES = ("prod", "staging")
RUN_ID = "run-of-both"


@dataclass(frozen=True)
class Installation:
    """One Airflow with its home."""

    home: AirflowHome
    airflow: Airflow

    def follows_its_gang(self) -> bool:
        """Return whether a trigger has seen all ranks run. Before, no trigger would end the gang of a failed task."""
        logs = (self.home.path / "logs" / "dag_id=held" / f"run_id={RUN_ID}").glob("task_id=gang/*.trigger.*.log")
        return any(FOLLOWED in log.read_text() for log in logs)


@pytest.fixture(autouse=True)
def everything_runs_again() -> None:
    """These tests have installations of their own."""


@pytest.fixture(scope="module")
def installations(
    postgres: Postgres, cluster: SandboxThread, gates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Installation]]:
    """Two installations with a database each, on one cluster."""
    homes = {}
    for name in NAMES:
        path = tmp_path_factory.mktemp(name) / "home"
        options = {**SHORT_TIMEOUTS, "GANGJOBS__INSTALLATION_ID": name, "GANGJOBS__SWEEP_GRACE": "5"}
        database = postgres.create_database(name)
        homes[name] = AirflowHome.make(path, database=database, dags=Path(__file__).parent / "dags", **options)
        homes[name].environment["GANGJOBS_TEST_GATES"] = str(gates)
        homes[name].add_cluster("kubernetes_default", cluster.kubeconfig_path)
    with homes["prod"].running() as prod, homes["staging"].running() as staging:
        yield {"prod": Installation(homes["prod"], prod), "staging": Installation(homes["staging"], staging)}


def test_installations_have_a_gang_each_and_end_only_their_own(
    installations: dict[str, Installation], cluster_history: ClusterHistory, gates: Path
) -> None:
    runs: dict[str, DagRun] = {
        name: one.airflow.api.trigger("held", RUN_ID, gate="two") for name, one in installations.items()
    }
    keys = {name: TaskKey("held", RUN_ID, "gang", -1, name) for name in NAMES}
    wait_for("both gangs", lambda: all(running(cluster_history, key) == 2 for key in keys.values()))
    for name, key in keys.items():
        (job,) = cluster_history.jobs(key)
        assert job["metadata"]["labels"][LABEL_INSTALLATION] == name
    wait_for("a trigger of each gang", lambda: all(one.follows_its_gang() for one in installations.values()))

    runs["staging"].set_task_state("gang", "failed")
    wait_for("the end of one gang", lambda: not cluster_history.jobs(keys["staging"]))
    assert running(cluster_history, keys["prod"]) == 2

    (gates / "two").touch()
    assert runs["prod"].wait() == "success"
    assert cluster_history.deliveries(keys["prod"]) == 1
    cluster_history.check()


def running(cluster_history: ClusterHistory, key: TaskKey) -> int:
    """Return how many ranks of the task run."""
    return sum(pod["status"].get("phase") == "Running" for pod in cluster_history.pods(key))
