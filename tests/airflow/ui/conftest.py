"""Fixtures: an Airflow behind a URL path, with users of different permissions, connected to a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.ports import free_port
from tests.airflow.airflow_home import AirflowHome
from tests.airflow.ui.browser import open_browser
from tests.airflow.ui.shared_runs import SharedRuns
from tests.airflow.ui.users import ADMIN, PASSWORDS, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.ui.browser import Browser

PATH = "/data/airflow"
"""The path of Airflow's base URL, as behind a reverse proxy."""


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    path = tmp_path_factory.mktemp("airflow") / "home"
    passwords = path.parent / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    port = free_port()
    return AirflowHome.make(
        path,
        dags=Path(__file__).parent / "dags",
        admin=(ADMIN, PASSWORDS[ADMIN]),
        CORE__AUTH_MANAGER="tests.airflow.ui.permissions.PermissionsByDag",
        CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="False",
        CORE__SIMPLE_AUTH_MANAGER_USERS=ROLES,
        CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(passwords),
        CORE__EXECUTION_API_SERVER_URL=f"http://127.0.0.1:{port}{PATH}/execution/",
        API__PORT=str(port),
        API__BASE_URL=f"http://127.0.0.1:{port}{PATH}",
        GANGJOBS__REST_WRITE_CONNECTIONS="kubernetes_default",
    )


@pytest.fixture(scope="package")
def connected(home: AirflowHome, cluster: SandboxThread) -> AirflowHome:
    home.add_cluster("kubernetes_default", cluster.kubeconfig_path)
    return home


@pytest.fixture(scope="package")
def shared_runs(connected: AirflowHome) -> Iterator[SharedRuns]:
    with connected.running() as airflow:
        yield SharedRuns(connected, airflow.api)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser(free_port()) as browser:
        yield browser
