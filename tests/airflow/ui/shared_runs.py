"""A running Airflow whose DAG runs have gangs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scripts.ports import free_port
from tests.airflow.api import Api, DagRun
from tests.airflow.polling import wait_for
from tests.airflow.processes import stopped_at_the_end
from tests.airflow.ui.users import PASSWORDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.airflow.airflow_home import AirflowHome


@dataclass(frozen=True)
class SharedRuns:
    """A running Airflow, with at most one run of each DAG."""

    home: AirflowHome = field(repr=False)
    api: Api
    runs: dict[str, DagRun] = field(default_factory=dict)

    def run(self, dag_id: str) -> DagRun:
        if dag_id not in self.runs:
            self.runs[dag_id] = self.api.trigger(dag_id)
        return self.runs[dag_id]

    def gang(self, dag_id: str) -> dict[str, Any]:
        """Return the XCom `gang` of the DAG's task."""
        found: dict[str, Any] = self.run(dag_id).xcom("gang", "gang")
        return found

    @contextmanager
    def disconnected_api_server(self, kubeconfig: Path) -> Iterator[str]:
        """Run another API server of the same Airflow with this kubeconfig, and yield the URL of that API server."""
        port = free_port()
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
        url = f"http://127.0.0.1:{port}"
        process = self.home.process(
            "api-server",
            "-disconnected",
            AIRFLOW__API__PORT=str(port),
            AIRFLOW__API__BASE_URL=url,
            AIRFLOW_CONN_KUBERNETES_DEFAULT=json.dumps(connection),
        )
        with stopped_at_the_end({process.name: process}):
            process.start()
            wait_for("the other API server", Api(url).is_healthy)
            yield url

    def token(self, user: str) -> str:
        """Return a session token of the user."""
        body = {"username": user, "password": PASSWORDS[user]}
        return str(self.api.call("POST", "/auth/token", body)["access_token"])
