"""What the soak runs on: Airflow on PostgreSQL with two triggerers, a real control plane with nodes, and a recorder."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from tests.airflow.airflow_home import AirflowHome
from tests.airflow.postgres.conftest import SHORT_TIMEOUTS, TRIGGERERS
from tests.airflow.postgres.server import Postgres
from tests.airflow.task_states import TaskStates
from tests.cluster.control_plane import running_plane
from tests.cluster.node_pool import NodePool
from tests.cluster.tenant import Tenant
from tests.guarantees.checkers import SWEEP_GRACE_S
from tests.guarantees.recorder import RecorderThread, recording_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.processes import Airflow, Process

RELEASE = "1.37"
NODES = 8
NODE_CPU = 16
CONN_ID = "kubernetes_default"
DATABASE = "soak"
FLAKY = "tests.airflow.flaky_secrets.FlakySecrets"


@dataclass(frozen=True)
class Deployment:
    """A running Airflow, the states of its tasks, and the history of its namespace."""

    airflow: Airflow
    states: TaskStates
    recorder: RecorderThread
    tenant: Tenant

    @property
    def triggerers(self) -> list[Process]:
        return [process for name, process in self.airflow.processes.items() if name.startswith("triggerer")]


@contextmanager
def deployed(
    folder: Path, *, gangs: int, without_worker: int, run_s_max: int, seed: int, parallelism: int
) -> Iterator[Deployment]:
    """Run everything while the block runs, under the documented Role, with a secrets backend that fails often.

    :param without_worker: How many of the gangs start and end in a triggerer.
    """
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres.running())
        plane = stack.enter_context(running_plane(RELEASE, folder / "plane"))
        stack.enter_context(NodePool.running(plane, nodes=NODES, cpu=NODE_CPU))
        tenant = stack.enter_context(Tenant.created(plane, "soak"))
        extra = {"kube_config_path": str(tenant.kubeconfig), "namespace": tenant.namespace}
        connection = json.dumps({"conn_type": "kubernetes", "extra": extra})
        home = AirflowHome.make(
            folder / "airflow",
            database=postgres.create_database(DATABASE),
            dags=Path(__file__).parent / "dags",
            **SHORT_TIMEOUTS,
            SECRETS__BACKEND=FLAKY,
            SECRETS__BACKEND_KWARGS=json.dumps({CONN_ID: connection}),
            WORKERS__SECRETS_BACKEND=FLAKY,
            WORKERS__SECRETS_BACKEND_KWARGS=json.dumps({CONN_ID: connection}),
        )
        home.environment |= {
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__GANGJOBS__INSTALLATION_ID": "soak",  # Airflow derives no id from the URL of a local host
            "AIRFLOW__GANGJOBS__SWEEP_GRACE": str(SWEEP_GRACE_S),  # a sweep keeps the grace of the checkers, too
            "GANGJOBS_SOAK_GANGS": str(gangs),
            "GANGJOBS_SOAK_WITHOUT_WORKER": str(without_worker),
            "GANGJOBS_SOAK_RUN_S_MAX": str(run_s_max),
            "GANGJOBS_SOAK_SEED": str(seed),
        }
        admin = {"kube_config_path": str(plane.folder / "admin.kubeconfig")}
        config = ClusterConfig.from_extras("admin", admin)
        recorder = stack.enter_context(recording_in_thread(config, tenant.namespace))
        states = TaskStates(postgres, DATABASE)
        states.start()
        airflow = stack.enter_context(home.running(triggerers=TRIGGERERS))
        yield Deployment(airflow, states, recorder, tenant)
