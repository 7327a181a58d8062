"""One Airflow with LocalExecutor on PostgreSQL, and one real control plane with hollow nodes, for all variants."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.api_server import airflow_environment, allow_all, control_plane, hollow_nodes
from benchmarks.harness import log_progress, with_bytecode
from benchmarks.pipeline.processes import SCHEDULER, Processes
from benchmarks.pipeline.sizes import GANGS_VARIABLE, PODS_RUN_S
from tests.airflow.airflow_home import AirflowHome
from tests.airflow.postgres.server import Postgres
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.processes import Airflow
    from tests.cluster.control_plane import ControlPlane

RELEASE: Final = "1.37"
NODES: Final = 4
DATABASE: Final = "airflow"
DAGS: Final = Path(__file__).parent / "dags"
API_SERVER: Final = "API server"
CLUSTER: Final = "cluster"
NODES_KIND: Final = "hollow nodes"
KINDS: Final = {
    "api-server": API_SERVER,
    "scheduler": SCHEDULER,
    "dag-processor": "DAG processor",
    "triggerer-0": "triggerer",
}
SETTINGS: Final = {
    # Otherwise the DAG processor parses the files of all variants every 30 s, and each variant pays for the others.
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "36000",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "300",
}


@dataclass(frozen=True)
class Deployment:
    """The processes that run while the benchmark runs."""

    home: AirflowHome
    airflow: Airflow
    postgres: Postgres
    plane: ControlPlane
    tenant: Tenant
    """The namespace of the gangs, and the account that Airflow uses in it."""
    processes: Processes

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return rows of Airflow's database. The REST API would cost the API server CPU that is measured."""
        return self.postgres.rows(DATABASE, statement, *values)

    @property
    def access_log(self) -> Path:
        """The log of Airflow's API server, with a line for each request."""
        return self.home.path / "api-server.log"


@contextmanager
def running(gangs: int, parallelism: int) -> Iterator[Deployment]:
    """Run all processes during the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipeline-")))
        plane = stack.enter_context(control_plane(RELEASE))
        tenant = stack.enter_context(Tenant.created(plane, "pipeline"))
        allow_all(tenant)
        nodes = stack.enter_context(hollow_nodes(plane, NODES, lasts_s=PODS_RUN_S))
        log_progress("the cluster runs")
        postgres = stack.enter_context(Postgres.running())
        home = _home(folder, postgres, tenant, gangs, parallelism)
        log_progress("the database has its tables")
        airflow = stack.enter_context(home.running())
        log_progress("Airflow runs")
        leaders = {airflow.processes[name].pid: kind for name, kind in KINDS.items()} | {postgres.pid: "database"}
        single = dict.fromkeys(plane.pids().values(), CLUSTER) | {nodes: NODES_KIND}
        yield Deployment(home, airflow, postgres, plane, tenant, Processes.of(leaders, single))


def _home(folder: Path, postgres: Postgres, tenant: Tenant, gangs: int, parallelism: int) -> AirflowHome:
    url = postgres.create_database(DATABASE)
    settings: dict[str, Any] = SETTINGS | {"CORE__PARALLELISM": str(parallelism)}
    home = AirflowHome.make(folder / "home", database=url, dags=DAGS, **settings)
    connection = airflow_environment(tenant.extras)["AIRFLOW_CONN_KUBERNETES_DEFAULT"]
    home.environment = with_bytecode(home.environment) | {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": connection,
        GANGS_VARIABLE: str(gangs),
    }
    return home
