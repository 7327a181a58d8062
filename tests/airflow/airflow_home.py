"""An Airflow installation for tests: AIRFLOW_HOME, database, DAGs, `dag.test()` runs, and all Airflow processes.

Airflow reads its configuration when it is imported, so Airflow never runs in the process of pytest.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.ports import free_port
from tests.airflow import hostname
from tests.airflow.api import Api
from tests.airflow.fork_server import ForkServer
from tests.airflow.polling import wait_for
from tests.airflow.processes import Airflow, Process, stopped_at_the_end
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SIMPLE_AUTH = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"


@dataclass(frozen=True)
class DagTestResult:
    """The result of one `dag.test()`."""

    state: str
    tasks: dict[str, dict[str, Any]]
    """The state and the returned value of each task, by the id of the task."""
    log: str = field(repr=False)

    def value(self, task_id: str) -> Any:
        return self.tasks[task_id]["value"]


@dataclass
class AirflowHome:
    """An Airflow installation: home folder, database, DAGs, and the environment variables of its processes."""

    path: Path
    environment: dict[str, str] = field(repr=False)
    admin: tuple[str, str] | None = field(default=None, repr=False)
    """Name and password of the admin; None if every user is an admin."""
    _fork_server: ForkServer | None = field(default=None, repr=False)

    @classmethod
    def make(
        cls,
        path: Path,
        *,
        database: str = "",
        dags: Path = HERE / "dags",
        admin: tuple[str, str] | None = None,
        **more: str,
    ) -> AirflowHome:
        """Make the folder with the tests' DAGs, and the tables of the database: SQLite if no other URL is given.

        `more` are settings, by names such as `SCHEDULER__PARSING_PRE_IMPORT_MODULES`.
        """
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
            "DATABASE__SQL_ALCHEMY_CONN": database or f"sqlite:///{path}/airflow.db?timeout={AIRFLOW_TIMEOUT_S:.0f}",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            # By default, Airflow parses each file again after 30 s. No test changes its files.
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
            "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            # Airflow's default of five seconds is too short for the first responses of an API server on a busy machine.
            "WORKERS__EXECUTION_API_TIMEOUT": "60",
            # So are the defaults for the imports of a DAG file (30 s), and for the lock of SQLite.
            "CORE__DAGBAG_IMPORT_TIMEOUT": str(AIRFLOW_TIMEOUT_S),
            "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": f"{AIRFLOW_TIMEOUT_S:.0f}",
            **more,
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
        shutil.copytree(dags, path / "dags")
        home = cls(path, environment, admin)
        home.run("airflow", "db", "migrate")
        return home

    @property
    def api_url(self) -> str:
        return self.environment["AIRFLOW__API__BASE_URL"]

    def add_cluster(self, conn_id: str, kubeconfig: str | Path, **extras: str) -> None:
        """Add a connection to a cluster for every process that starts later, with further extras."""
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig), **extras}}
        self.environment[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(connection)

    def run(self, *command: str, timeout_s: float = AIRFLOW_TIMEOUT_S, exit_codes: Collection[int] = (0,)) -> str:
        """Run a command to its end, with one of the expected exit codes, and return what it printed."""
        output = self.path / f"{secrets.token_hex(4)}.log"
        with output.open("w") as log:
            done = subprocess.run(
                command, env=self.environment, cwd=self.path, stdout=log, stderr=log, timeout=timeout_s, check=False
            )
        return _printed(command, done.returncode, exit_codes, output)

    def run_forked(
        self, *command: str, timeout_s: float = AIRFLOW_TIMEOUT_S, exit_codes: Collection[int] = (0,)
    ) -> str:
        """Run `airflow` or a Python program as `run` does, in a process for which Airflow has been imported already.

        It is a process as any other if this home has no fork server.
        """
        if self._fork_server is None:
            program = () if command[0] == "airflow" else (sys.executable,)
            return self.run(*program, *command, timeout_s=timeout_s, exit_codes=exit_codes)
        output = self.path / f"{secrets.token_hex(4)}.log"
        code = self._fork_server.run(command, self.environment, output, timeout_s)
        return _printed(command, code, exit_codes, output)

    @contextmanager
    def fork_server(self) -> Iterator[None]:
        """Let `run_forked` fork processes while the block runs, also for copies of this home with other variables."""
        self._fork_server = ForkServer(self.path, dict(self.environment))
        try:
            yield
        finally:
            self._fork_server.stop()
            self._fork_server = None

    def test_dags(self, *dag_ids: str) -> dict[str, DagTestResult]:
        """Run DAGs by `dag.test()`, one after the other in one process."""
        report = self.path / f"{secrets.token_hex(4)}.json"
        output = self.run_forked(str(HERE / "dag_test_program.py"), str(report), *dag_ids)
        logs = output.split("=== DAG ")
        return {
            dag_id: DagTestResult(**found, log=next(log for log in logs if log.startswith(f"{dag_id}\n")))
            for dag_id, found in json.loads(report.read_text()).items()
        }

    def trigger_log(self, dag_id: str) -> str:
        """Return what the triggers of the tasks of a DAG have logged."""
        return self._logs(dag_id, "*.trigger.*")

    def worker_log(self, dag_id: str, task_id: str = "*") -> str:
        """Return what the workers of a task of a DAG, or of all tasks, have logged."""
        return self._logs(dag_id, f"task_id={task_id}/**/attempt=?.log")

    def _logs(self, dag_id: str, pattern: str) -> str:
        files = (self.path / "logs" / f"dag_id={dag_id}").rglob(pattern)
        return "".join(file.read_text() for file in sorted(files))

    @contextmanager
    def running(self, *, triggerers: int = 1) -> Iterator[Airflow]:
        """Run scheduler, triggerers, dag-processor and API server while the block runs."""
        processes = {process.name: process for process in self._processes(triggerers)}
        airflow = Airflow(Api(self.api_url, self.admin), processes)
        with stopped_at_the_end(processes):
            for process in processes.values():
                process.start()
            wait_for("healthy processes", airflow.api.is_healthy)
            airflow.api.log_in()
            yield airflow

    def _processes(self, triggerers: int) -> Iterator[Process]:
        for name in ("api-server", "scheduler", "dag-processor"):
            yield self.process(name)
        for number in range(triggerers):
            own = {
                "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
                "AIRFLOW__CORE__HOSTNAME_CALLABLE": "tests.airflow.hostname.hostname",
                hostname.VARIABLE: f"triggerer-{number}",
            }
            yield self.process("triggerer", f"-{number}", **own)

    def process(self, program: str, suffix: str = "", **environment: str) -> Process:
        """Return one of Airflow's programs, which is not started yet."""
        return Process(program + suffix, ("airflow", program), self.path, self.environment | environment)


def _printed(command: tuple[str, ...], code: int, exit_codes: Collection[int], output: Path) -> str:
    """Return what a command has printed, if its exit code is an expected one."""
    printed = output.read_text()
    assert code in exit_codes, f"{command} exited {code}\n{printed[-4000:]}"
    return printed
