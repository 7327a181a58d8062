"""Real Airflow for tests: a home of its own with a SQLite database, `dag.test()` runs, and all four processes.

Airflow reads its configuration when it is imported, so it never runs in the process of pytest.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SIMPLE_AUTH = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
PROCESSES = ("api-server", "scheduler", "dag-processor", "triggerer")
STOP_TIMEOUT_S = 15.0
POLL_S = 0.2

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float = 60.0) -> T:
    """What `look` returns once it is neither `None` nor false; connection errors count as not yet."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = look()
        except OSError as error:
            last = error
        else:
            if last:
                return last  # type: ignore[return-value]
        time.sleep(POLL_S)
    raise TimeoutError(f"{what}: not after {timeout_s:g} s; last seen: {last!r}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Report:
    """What came of one `dag.test()`."""

    state: str
    tasks: dict[str, dict[str, Any]]
    """State and returned value by task id."""
    log: str = field(repr=False)

    def value(self, task_id: str) -> Any:
        return self.tasks[task_id]["value"]


@dataclass
class Home:
    """One Airflow installation's state: home folder, database, DAGs, and the environment that says so."""

    path: Path
    environment: dict[str, str] = field(repr=False)

    @classmethod
    def make(cls, path: Path) -> Home:
        """Make the folder with the tests' DAGs, and the database."""
        port = free_port()
        settings = {
            "CORE__DAGS_FOLDER": str(path / "dags"),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "2",
            "CORE__AUTH_MANAGER": SIMPLE_AUTH,
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(port),
            "API__BASE_URL": f"http://127.0.0.1:{port}",
            "API__WORKERS": "1",
            "API__SECRET_KEY": secrets.token_hex(16),
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{path}/airflow.db",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        }
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            "AIRFLOW_HOME": str(path),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(REPOSITORY),
            "NO_PROXY": "*",
        }
        path.mkdir(parents=True, exist_ok=True)
        shutil.copytree(HERE / "dags", path / "dags")
        home = cls(path, environment)
        home.run("airflow", "db", "migrate")
        return home

    @property
    def api_url(self) -> str:
        return self.environment["AIRFLOW__API__BASE_URL"]

    def add_cluster(self, conn_id: str, kubeconfig: str | Path) -> None:
        """Make a cluster known to every process that starts from now on."""
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
        self.environment[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(connection)

    def run(self, *command: str, timeout_s: float = 240.0) -> str:
        """Run a command to its end and return what it printed."""
        output = self.path / f"{secrets.token_hex(4)}.log"
        with output.open("w") as log:
            done = subprocess.run(
                command, env=self.environment, cwd=self.path, stdout=log, stderr=log, timeout=timeout_s, check=False
            )
        printed = output.read_text()
        assert done.returncode == 0, f"{command} exited {done.returncode}\n{printed[-4000:]}"
        return printed

    def test_dags(self, *dag_ids: str) -> dict[str, Report]:
        """Run DAGs by `dag.test()`, one after the other in one process."""
        report = self.path / f"{secrets.token_hex(4)}.json"
        output = self.run(sys.executable, str(HERE / "run_dag_test.py"), str(report), *dag_ids)
        logs = output.split("=== DAG ")
        return {
            dag_id: Report(**found, log=next(log for log in logs if log.startswith(f"{dag_id}\n")))
            for dag_id, found in json.loads(report.read_text()).items()
        }

    def trigger_log(self, dag_id: str) -> str:
        """What the triggers of a DAG's tasks have logged."""
        files = (self.path / "logs" / f"dag_id={dag_id}").glob("**/*.trigger.*")
        return "".join(file.read_text() for file in files)

    @contextmanager
    def processes(self) -> Iterator[Api]:
        """Scheduler, triggerer, dag-processor and API server, until the block ends."""
        with ExitStack() as stack:
            for name in PROCESSES:
                stack.enter_context(self._process(name))
            api = Api(self.api_url)
            wait_for("healthy processes", api.is_healthy, 150)
            api.log_in()
            yield api

    @contextmanager
    def _process(self, name: str) -> Iterator[None]:
        with (self.path / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                ["airflow", name],
                env=self.environment,
                cwd=self.path,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield
        finally:
            stop_session(process)


def stop_session(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session and everything below it; tasks have groups, but no sessions, of their own."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in pids_of_session(process.pid):
        os.kill(pid, signal.SIGKILL)


def pids_of_session(session: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,sess="], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid, sess in map(str.split, listed.splitlines()) if sess == str(session)]


class Api:
    """The few calls of Airflow's REST API that tests make."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._token = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)

    def is_healthy(self) -> bool:
        health = self.call("GET", "/api/v2/monitor/health")
        return all(health[name]["status"] == "healthy" for name in ("scheduler", "triggerer", "dag_processor"))

    def log_in(self) -> None:
        self._token = self.call("GET", "/auth/token")["access_token"]

    def trigger(self, dag_id: str, **conf: Any) -> DagRun:
        """Unpause the DAG, once it is parsed, and start a run."""
        wait_for(f"DAG {dag_id}", lambda: self.call("GET", f"/api/v2/dags/{dag_id}"))
        self.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})
        run = self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        return DagRun(self, dag_id, run["dag_run_id"])


@dataclass
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

    def set_task_state(self, task_id: str, state: str) -> None:
        self.api.call("PATCH", f"{self._path}/taskInstances/{task_id}", {"new_state": state})

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        return self.api.call("GET", f"{self._path}/taskInstances/{task_id}/xcomEntries/{key}?deserialize=true")["value"]

    def wait(self, timeout_s: float = 240.0) -> str:
        """The final state."""
        finished = ("success", "failed")
        return wait_for(
            f"end of {self.run_id}", lambda: state if (state := self.state) in finished else None, timeout_s
        )

    def wait_for_task(self, task_id: str, state: str, timeout_s: float = 60.0) -> None:
        wait_for(f"{task_id} {state}", lambda: self.task(task_id)["state"] == state, timeout_s)
