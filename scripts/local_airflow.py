"""A separate Airflow in one directory: its settings, its command lines, and a client of its REST API.

This Airflow does not read or write the user's own Airflow: all AIRFLOW variables are removed and the ports are free
ports. Every user is admin without a password, and only this machine can connect.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from scripts.ports import free_port

PROJECT = Path(__file__).parents[1]
DAGS = PROJECT / "dags_examples"
PROGRAMS = ("api-server", "scheduler", "dag-processor", "triggerer")
REQUEST_TIMEOUT_S = 60.0
TOKEN_S = 600.0
"""How long the client uses a token. A token is valid for a day."""


def environment(home: Path, *, port: int, output: Path) -> dict[str, str]:
    """Return the environment variables for each Airflow process of the directory `home`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    url = f"http://127.0.0.1:{port}"
    return inherited | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "GANGJOBS_OUTPUT_DIR": str(output),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        # By default Airflow fails a task whose first request takes longer than five seconds. The first responses of an
        # API server take longer on a busy laptop.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        # The scheduler may start a task before the API server listens, which takes up to a minute on a busy laptop. By
        # default a task fails after some 15 seconds without an API server.
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "9",
        # The defaults of 30 s for the imports of a DAG file and 5 s for a lock of SQLite are also too short there.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",  # An added DAG appears within 10 s instead of five minutes.
        # The executor notices the end of a worker up to this many seconds late. If the deferred task runs again by
        # then, the scheduler fails the task as "killed externally". The example gangs take only a few seconds.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }


def airflow(*arguments: str) -> list[str]:
    """Return the command line that runs `airflow` with this Python."""
    return [sys.executable, "-m", "airflow", *arguments]


def connection(kubeconfig: Path) -> str:
    """Return the value of an AIRFLOW_CONN variable: a `kubernetes` connection with this kubeconfig."""
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}})


@dataclass
class Rest:
    """A client of Airflow's REST API."""

    url: str

    def __post_init__(self) -> None:
        self._client = httpx.Client(base_url=self.url, timeout=REQUEST_TIMEOUT_S, trust_env=False)
        self._token, self._renew_at = "", 0.0

    def get(self, path: str) -> Any:
        """Return the response to GET /api/v2<path>; `None` if there is no such object or no server yet."""
        try:
            response = self._client.get(f"/api/v2{path}", headers=self._headers())
        except httpx.TransportError:
            return None
        if response.status_code in {httpx.codes.NOT_FOUND, httpx.codes.SERVICE_UNAVAILABLE}:
            return None
        return response.raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._client.post(f"/api/v2{path}", json=body, headers=self._headers()).raise_for_status().json()

    def _headers(self) -> dict[str, str]:
        if time.monotonic() > self._renew_at:
            self._token = self._client.get("/auth/token").raise_for_status().json()["access_token"]
            self._renew_at = time.monotonic() + TOKEN_S
        return {"Authorization": f"Bearer {self._token}"}


def tail(log: Path, lines: int = 30) -> list[str]:
    """Return the last lines of a log. For a task's log, which is JSON, return only the messages and the errors."""
    return [_format_line(line) for line in log.read_text(errors="replace").splitlines()[-lines:]]


def _format_line(line: str) -> str:
    try:
        record = json.loads(line)
        errors = [f"{error['exc_type']}: {error['exc_value']}" for error in record.get("error_detail") or ()]
        return "\n  ".join([f"{record['level']}: {record['event']}", *errors])
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
