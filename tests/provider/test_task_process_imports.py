"""The modules that each process of a task imports beyond those of the DAG file, and beyond the preload."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import pytest

from benchmarks.harness import ROOT
from tests.provider.task_runner import run_serialized_trigger

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread

OURS = "airflow_provider_gangjobs."
NEVER = (
    "aiohttp",
    "yarl",
    "multidict",
    "kubernetes",
    "kubernetes_asyncio",
    "airflow.providers.cncf",
    "starlette",
    f"{OURS}cli",
    f"{OURS}cluster.auth.exec_plugin",
    f"{OURS}cluster.http.aiohttp_transport",
    f"{OURS}cluster.informer",
    f"{OURS}plugins",
    f"{OURS}tracking.follow",
    f"{OURS}tracking.harvest.harvester",
)
NOT_TO_SUBMIT = (
    f"{OURS}gang.outcome.outcome_diagnosis",
    f"{OURS}attempt.completion",
    f"{OURS}ending.submissions",
    f"{OURS}ending.submissions",
    f"{OURS}submission.operations",
    f"{OURS}tracking",
    f"{OURS}attempt.triggerer.endings",
    f"{OURS}attempt.triggerer.endings",
    f"{OURS}attempt.triggerer.gang_wait",
)
NOT_TO_RESUME = (
    f"{OURS}cluster.served_resources",
    f"{OURS}gang.outcome.outcome_diagnosis",
    f"{OURS}gang.render.job_manifest",
    f"{OURS}gang.validation.validate",
    f"{OURS}submission.adopt_or_submit",
    f"{OURS}submission.steps.order",
    f"{OURS}submission.steps.placement",
    f"{OURS}submission.submit",
    f"{OURS}triggers.gang_job",
)


@dataclass(frozen=True)
class Ran:
    """What the process of one part of a task has printed, and the modules that it has imported since it was forked."""

    printed: dict[str, Any]
    imported: list[str]


class TaskProcesses:
    """A process that forks the processes of tasks."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.provider.forked_task"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._parent:  # closes the pipes, whose end ends the process, and waits
            pass
        assert self._parent.returncode == 0

    def run_task(self) -> dict[str, Ran]:
        """Run the parts of one task, each in a process, and return what they did by step."""
        script = 'echo said; echo "[1, 2]" > "$GANG_RESULT_PATH"'
        task: dict[str, Any] = {"run_id": uuid4().hex, "claim": str(uuid4()), "script": script, "namespace": "default"}
        ran = {step: self._run(step, task) for step in ("submit", "adopt")}
        task["event"] = run_serialized_trigger(**ran["adopt"].printed["trigger"])
        return ran | {"resume": self._run("resume", task)}

    def preload(self) -> list[str]:
        """Import the preload in the process that forks. Return what this leaves behind that a fork must not share."""
        self._send("preload")
        return self._receive()

    def _run(self, step: str, task: dict[str, Any]) -> Ran:
        self._send("run", step, task)
        return Ran(self._receive(), self._receive())

    def _send(self, *command: Any) -> None:
        assert self._parent.stdin is not None
        print(json.dumps(command), file=self._parent.stdin, flush=True)

    def _receive(self) -> Any:
        """Return the next line that is JSON: Airflow may print others."""
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise AssertionError("the process that forks has ended")


@dataclass(frozen=True)
class Tasks:
    """The processes of a task that is run as it is, and of a task that is run after the preload."""

    ordinary: dict[str, Ran]
    left_behind: list[str]
    preloaded: dict[str, Ran]


@pytest.fixture(scope="module")
def tasks(embedded: SandboxThread) -> Tasks:
    extra = {"kube_config_path": str(embedded.kubeconfig_path), "namespace": "default"}
    with pytest.MonkeyPatch.context() as patch:
        described = json.dumps({"conn_type": "kubernetes", "extra": extra})
        patch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", described)
        with TaskProcesses() as processes:
            return Tasks(processes.run_task(), processes.preload(), processes.run_task())


@pytest.mark.parametrize(
    ("step", "unwanted"),
    [("submit", NEVER + NOT_TO_SUBMIT), ("adopt", NEVER + NOT_TO_SUBMIT), ("resume", NEVER + NOT_TO_RESUME)],
)
def test_process_of_a_task_imports_only_what_it_needs(step: str, unwanted: tuple[str, ...], tasks: Tasks) -> None:
    modules = tasks.ordinary[step].printed["modules"]

    assert f"{OURS}cluster.http.httpx_transport" in modules
    assert [name for name in modules if name.startswith(tuple(f"{prefix}." for prefix in unwanted))] == []
    assert [name for name in modules if name in unwanted] == []


@pytest.mark.parametrize("step", ["submit", "adopt", "resume"])
def test_process_of_a_task_imports_nothing_of_the_provider_after_the_preload(step: str, tasks: Tasks) -> None:
    preloaded = ("airflow_provider_gangjobs", "httpx", "httpcore", "anyio")
    assert [name for name in tasks.preloaded[step].imported if name.startswith(preloaded)] == []


@pytest.mark.parametrize("kind", ["ordinary", "preloaded"])
def test_processes_of_one_task_hand_over_its_gang(kind: str, tasks: Tasks) -> None:
    submitted, adopted, resumed = (ran.printed for ran in getattr(tasks, kind).values())

    assert submitted["trigger"] == adopted["trigger"]
    assert resumed["value"] == [1, 2]


def test_preload_leaves_nothing_behind_that_a_fork_must_not_share(tasks: Tasks) -> None:
    """A thread, a connection or an event loop of the parent does not work in the forked process."""
    assert tasks.left_behind == []
