"""A client for the calls of Airflow's REST API that tests need."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S, TIMEOUT_S

FINISHED = ("success", "failed")


class Api:
    """A client of Airflow's REST API with the rights of an admin."""

    def __init__(self, url: str, admin: tuple[str, str] | None = None) -> None:
        self._url = url
        self._admin = admin
        self._token = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self.read(path, method, body))

    def read(self, path: str, method: str = "GET", body: Any = None) -> str:
        """Return the body of the response as text."""
        request = urllib.request.Request(
            self._url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return str(reply.read().decode())

    def is_healthy(self) -> bool:
        health = self.call("GET", "/api/v2/monitor/health")
        return all(health[name]["status"] == "healthy" for name in ("scheduler", "triggerer", "dag_processor"))

    def log_in(self) -> None:
        """Log in by name and password, if there are any. Without them, Airflow treats every user as an admin."""
        if self._admin is None:
            self._token = self.call("GET", "/auth/token")["access_token"]
        else:
            body = dict(zip(("username", "password"), self._admin, strict=True))
            self._token = self.call("POST", "/auth/token", body)["access_token"]

    def trigger(self, dag_id: str, run_id: str | None = None, **conf: Any) -> DagRun:
        """Wait until the DAG is parsed, unpause the DAG, and start a run."""
        wait_for(f"DAG {dag_id}", lambda: self.call("GET", f"/api/v2/dags/{dag_id}"))
        self.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})
        run = DagRun(self, dag_id, run_id or f"test__{uuid.uuid4()}")
        wanted = {"logical_date": None, "conf": conf, "dag_run_id": run.run_id}
        wait_for(f"the creation of {run}", lambda: self._create_run(dag_id, wanted))
        return run

    def _create_run(self, dag_id: str, wanted: dict[str, Any]) -> bool:
        """Create a run, and return whether it exists. On SQLite, Airflow answers 500 after a lock of one minute."""
        try:
            self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", wanted)
        except urllib.error.HTTPError as error:
            if error.code not in {HTTPStatus.CONFLICT, HTTPStatus.INTERNAL_SERVER_ERROR}:
                raise AssertionError(f"the run is refused: {error} {error.read().decode()}") from error
            return error.code == HTTPStatus.CONFLICT
        return True


@dataclass(frozen=True)
class DagRun:
    api: Api = field(repr=False)
    dag_id: str
    run_id: str

    @property
    def _path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{urllib.parse.quote(self.run_id, safe='')}"

    @property
    def state(self) -> str:
        return str(self.api.call("GET", self._path)["state"])

    def task(self, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.call("GET", f"{self._path}/taskInstances/{task_id}")
        return found

    def mapped(self, task_id: str) -> list[dict[str, Any]]:
        """Return all instances of a mapped task, in the order of their index."""
        found = self.api.call("GET", f"{self._path}/taskInstances/{task_id}/listMapped?limit=100")
        return sorted(found["task_instances"], key=lambda ti: int(ti["map_index"]))

    def set_task_state(self, task_id: str, state: str) -> None:
        self.api.call("PATCH", f"{self._path}/taskInstances/{task_id}", {"new_state": state})

    def clear(self, task_id: str) -> None:
        """Clear the task, so that it runs again."""
        wanted = {"dry_run": False, "task_ids": [task_id], "dag_run_id": self.run_id, "only_failed": False}
        self.api.call("POST", f"/api/v2/dags/{self.dag_id}/clearTaskInstances", wanted)

    def xcom(self, task_id: str, key: str = "return_value", *, map_index: int = -1) -> Any:
        entry = f"{self._path}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api.call("GET", f"{entry}?deserialize=true&map_index={map_index}")["value"]

    def wait(self, timeout_s: float = AIRFLOW_TIMEOUT_S) -> str:
        """Wait until the run has ended, and return its final state."""
        return wait_for(
            f"end of {self.run_id}", lambda: state if (state := self.state) in FINISHED else None, timeout_s
        )

    def wait_for_task(self, task_id: str, state: str, timeout_s: float = AIRFLOW_TIMEOUT_S) -> None:
        wait_for(f"{task_id} {state}", lambda: self.task(task_id)["state"] == state, timeout_s)
