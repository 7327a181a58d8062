"""A backfill of the example DAG, whose runs a real scheduler creates and a real triggerer follows."""

from __future__ import annotations

import json
import random
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.resources import JOBS, PRIORITYCLASSES
from gangjobs_sandbox.thread import running
from tests.airflow.airflow_home import REPOSITORY, AirflowHome
from tests.airflow.api import DagRun
from tests.airflow.polling import wait_for
from tests.airflow.postgres.server import Postgres
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.api import Api

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]
DAG = "backfill_days_gang"
EXAMPLE = REPOSITORY / "dags_examples" / f"{DAG}.py"
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
CHUNKS = 5
PRIORITY = "of-the-backfill"
"""The cluster has no class `batch-low`, so no pod is created for the run that the schedule itself adds."""


@pytest.fixture
def cluster() -> Iterator[SandboxThread]:
    """An embedded cluster for this backfill only."""
    with running(SandboxConfig(nodes=2)) as sandbox:
        low = {"metadata": {"name": PRIORITY}, "value": -10}
        sandbox.call(lambda it: it.registry.create(PRIORITYCLASSES, low))
        yield sandbox


@pytest.fixture
def home(cluster: SandboxThread, tmp_path: Path) -> Iterator[AirflowHome]:
    """An Airflow home with the example as its only DAG.

    The command writes to the database while the scheduler writes, which SQLite may refuse ("database is locked").
    """
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(EXAMPLE, dags)
    with Postgres.running() as postgres:
        home = AirflowHome.make(tmp_path / "home", database=postgres.create_database("backfill"), dags=dags)
        home.add_cluster("kubernetes_default", cluster.kubeconfig_path)
        yield home


def create_backfill(home: AirflowHome, api: Api, **conf: Any) -> None:
    """Run the command of the example for fewer days, at most two at a time."""
    wait_for(f"DAG {DAG}", lambda: api.call("GET", f"/api/v2/dags/{DAG}"))
    api.call("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": False})
    command = re.search(r"airflow backfill create (.*\\\n)*.*", EXAMPLE.read_text())
    assert command is not None
    changed = command[0].replace("2026-01-07", DAYS[-1]).replace("runs 3", "runs 2")
    home.run(*changed.replace("\\\n", " ").split(), "--dag-run-conf", json.dumps(conf))


def runs_of_backfill(api: Api) -> list[dict[str, Any]]:
    found = api.call("GET", f"/api/v2/dags/{DAG}/dagRuns?run_type=backfill&order_by=logical_date")
    runs: list[dict[str, Any]] = found["dag_runs"]
    return runs


def visits_of(day: str) -> int:
    return sum(random.Random(f"{day} {rank} {c}").randrange(100) for rank in range(3) for c in range(CHUNKS))


def test_scheduler_runs_one_gang_for_each_day_of_a_backfill(
    home: AirflowHome, cluster: SandboxThread, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with home.running() as airflow:
        create_backfill(home, airflow.api, folder=str(folder), chunks=CHUNKS, pause=0.1, priority_class=PRIORITY)
        runs = wait_for("the end of the backfill", lambda: ended(runs_of_backfill(airflow.api)))
        totals = [DagRun(airflow.api, DAG, run["dag_run_id"]).xcom("total") for run in runs]
        gangs = [DagRun(airflow.api, DAG, run["dag_run_id"]).xcom("count", "gang")["name"] for run in runs]

    assert [(run["logical_date"][:10], run["state"]) for run in runs] == [(day, "success") for day in DAYS]
    assert totals == [visits_of(day) for day in DAYS]
    assert len(set(gangs)) == len(DAYS)
    assert not set(gangs) & set(cluster.call(lambda it: [job["metadata"]["name"] for job in it.registry.list(JOBS)]))
    assert most_at_once(runs) <= 2


def ended(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs if all of them have ended."""
    return runs if len(runs) == len(DAYS) and all(run["end_date"] for run in runs) else []


def most_at_once(runs: list[dict[str, Any]]) -> int:
    """Return how many runs were active at the same time."""
    return max(sum(run["start_date"] <= each["start_date"] < run["end_date"] for run in runs) for each in runs)
