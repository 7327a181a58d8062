"""DAG runs whose gangs wait until the test lets them end."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from airflow_provider_gangjobs.gang.identity import TaskKey, job_name
from tests.airflow.api import DagRun
from tests.airflow.polling import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.airflow.airflow_home import AirflowHome
    from tests.airflow.postgres.cluster_history import ClusterHistory
    from tests.airflow.postgres.faults import FaultClient
    from tests.airflow.processes import Airflow, Process

RANKS = 2
FOLLOWED = f"running: {RANKS}/{RANKS} ranks"
"""The line that a trigger logs when it sees all ranks run."""


@dataclass(frozen=True)
class AirflowDeployment:
    """One Airflow and one cluster, with the history of the cluster and its fault injection."""

    home: AirflowHome = field(repr=False)
    airflow: Airflow = field(repr=False)
    cluster_history: ClusterHistory = field(repr=False)
    faults: FaultClient = field(repr=False)
    gates: Path
    _runs: list[HeldRun] = field(default_factory=list, repr=False)

    def plan(self, dag_id: str = "held") -> HeldRun:
        """Return a run whose names are known, and that is not started yet."""
        name = secrets.token_hex(4)
        run = HeldRun(self, DagRun(self.airflow.api, dag_id, f"run-{name}"), self.gates / name)
        self._runs.append(run)
        return run

    def start(self, dag_id: str = "held") -> HeldRun:
        return self.plan(dag_id).start()

    @property
    def scheduler(self) -> Process:
        return self.airflow.processes["scheduler"]

    @property
    def triggerers(self) -> list[Process]:
        return [process for name, process in self.airflow.processes.items() if name.startswith("triggerer")]

    def clear_up(self) -> None:
        """Start all processes that have ended, and let the gangs that a failed test has left end."""
        self.faults.disarm()
        self.airflow.revive()
        for run in self._runs:
            run.open()

    def let_another_pass(self) -> None:
        """Run another gang to its end. By then Airflow has reacted to everything that happened before."""
        other = self.start()
        other.open()
        other.succeeded_exactly_once()


@dataclass(frozen=True)
class HeldRun:
    """A run of a DAG whose gangs wait for one gate."""

    deployment: AirflowDeployment = field(repr=False)
    run: DagRun
    gate: Path

    def start(self) -> HeldRun:
        self.deployment.airflow.api.trigger(self.run.dag_id, self.run.run_id, gate=self.gate.name)
        return self

    def open(self) -> None:
        """Let the gangs end."""
        self.gate.touch()

    def key(self, map_index: int = -1) -> TaskKey:
        return TaskKey(self.run.dag_id, self.run.run_id, "gang", map_index)

    @property
    def name_of_job(self) -> str:
        """The name of the Job of the first attempt, as the submission computes it."""
        key = self.key()
        return job_name(key.slug, key.digest, 0)

    @property
    def path_of_job(self) -> str:
        """The path of the Job in the API of the cluster, as a regular expression."""
        return f"/namespaces/default/jobs/{self.name_of_job}$"

    @property
    def path_of_log(self) -> str:
        """The path of the log of any rank in the API of the cluster, as a regular expression."""
        return f"/namespaces/default/pods/{self.name_of_job}-.*/log$"

    @property
    def task(self) -> dict[str, Any]:
        return self.run.task("gang")

    def ranks(self, phase: str, map_index: int = -1) -> int:
        """Return how many pods are in this phase. Pods that have ended stay until their outcome is recorded."""
        return sum(
            pod["status"].get("phase") == phase for pod in self.deployment.cluster_history.pods(self.key(map_index))
        )

    def log(self, pattern: str = "attempt=*.log") -> str:
        """Return the log files of the task that match the pattern: those of its tries, or of its triggers."""
        folder = self.deployment.home.path / "logs" / f"dag_id={self.run.dag_id}" / f"run_id={self.run.run_id}"
        return "".join(file.read_text() for file in sorted(folder.glob(f"task_id=gang/{pattern}")))

    @property
    def trigger_log(self) -> str:
        """The log of the triggers of all tries, in any triggerer."""
        return self.log("attempt=*.trigger.*")

    def kill_worker(self, *, supervisor: bool = False) -> None:
        """Kill the process that runs the task, and also the supervisor of that process if `supervisor` is true."""
        process = psutil.Process(self.task["pid"])
        above = process.parent()
        if supervisor and above is not None:
            above.kill()
        process.kill()

    # -- conditions --------------------------------------------------------------------------------------------

    def wait_until_followed(self, *, but_not_by: Process | None = None) -> Process:
        """Wait until a living triggerer has seen all ranks run, and return that triggerer."""

        def follower() -> Process | None:
            job = self.task["triggerer_job"]
            if job is None or FOLLOWED not in self.log(f"attempt=*.trigger.{job['id']}.log"):
                return None
            process = self.deployment.airflow.processes[job["hostname"]]
            return process if process.is_alive and process is not but_not_by else None

        return wait_for("a triggerer that follows the gang", follower)

    def wait_until_gone(self, map_index: int = -1) -> None:
        """Wait until the cluster has no Job and no pod of the gang. This is some time after the success of the task."""
        key, cluster_history = self.key(map_index), self.deployment.cluster_history
        wait_for("deletion of the gang", lambda: not cluster_history.jobs(key) and not cluster_history.pods(key))

    # -- what must hold at the end -----------------------------------------------------------------------------

    def succeeded_exactly_once(self, *, tries: int = 1) -> None:
        """Check that the task had one gang, one outcome for each rank, and one delivery of the results."""
        assert self.run.wait() == "success"
        assert self.task["try_number"] == tries
        self.wait_until_gone()
        ran_once(self.deployment.cluster_history, self.key())
        assert self.run.xcom("gang") == [{"rank": rank, "number": "0"} for rank in range(RANKS)]
        resumed = self.log(f"attempt={tries}.log*").count("Time used: ")  # of a worker, or of a triggerer
        assert resumed == 1, "the task did not end exactly once"


def ran_once(cluster_history: ClusterHistory, key: TaskKey) -> None:
    """Check that the history of the cluster has one Job, one outcome for each of its pods, and one delivery."""
    assert [job["metadata"]["name"][-2:] for job in cluster_history.jobs_created(key)] == ["-0"]
    pods = cluster_history.pod_uids(key)
    assert len(pods) == RANKS
    recorded = cluster_history.recorded(key)
    assert set(recorded) == pods
    assert all(len(outcomes) == 1 for outcomes in recorded.values()), "an outcome has changed"
    assert cluster_history.deliveries(key) == 1
