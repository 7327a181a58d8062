"""The modules that each process of a task imports beyond those of the DAG file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from benchmarks.harness import ROOT
from tests.provider.task_runner import run_serialized_trigger
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread

PROGRAM = ROOT / "benchmarks" / "task_process_child.py"
OURS = "airflow_provider_gangjobs."
NEVER = (
    "aiohttp",
    "yarl",
    "multidict",
    "httptools",
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
    f"{OURS}gang.outcome.diagnosis",
    f"{OURS}operators.completion",
    f"{OURS}submission.cleanup",
    f"{OURS}submission.deletion",
    f"{OURS}submission.operations",
    f"{OURS}tracking",
    f"{OURS}triggers.kill",
    f"{OURS}triggers.sweeping",
    f"{OURS}triggers.gang_job_wait",
)
NOT_TO_RESUME = (
    f"{OURS}cluster.discovery",
    f"{OURS}gang.outcome.diagnosis",
    f"{OURS}gang.render.job",
    f"{OURS}gang.validation.validate",
    f"{OURS}submission.adopt",
    f"{OURS}submission.dry_run",
    f"{OURS}submission.placement",
    f"{OURS}submission.submit",
    f"{OURS}triggers.gang_job",
)


def run_process(step: str, task: dict[str, Any]) -> dict[str, Any]:
    """Run one process of a task, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), "ours", step, json.dumps(task)],
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
        cwd=ROOT,
    )
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.fixture(scope="module")
def processes(embedded: SandboxThread) -> dict[str, dict[str, Any]]:
    """Run the processes of one task, and return what they printed, by step."""
    extra = {"kube_config_path": str(embedded.kubeconfig_path), "namespace": "default"}
    script = 'echo said; echo "[1, 2]" > "$GANG_RESULT_PATH"'
    task: dict[str, Any] = {"run_id": uuid4().hex, "claim": str(uuid4()), "script": script, "namespace": "default"}
    with pytest.MonkeyPatch.context() as patch:
        described = json.dumps({"conn_type": "kubernetes", "extra": extra})
        patch.setitem(os.environ, "AIRFLOW_CONN_KUBERNETES_DEFAULT", described)
        printed = {step: run_process(step, task) for step in ("submit", "adopt")}
        task["event"] = run_serialized_trigger(**printed["adopt"]["trigger"])
        return printed | {"resume": run_process("resume", task)}


@pytest.mark.parametrize(
    ("step", "unwanted"),
    [("submit", NEVER + NOT_TO_SUBMIT), ("adopt", NEVER + NOT_TO_SUBMIT), ("resume", NEVER + NOT_TO_RESUME)],
)
def test_process_of_a_task_imports_only_what_it_needs(
    step: str, unwanted: tuple[str, ...], processes: dict[str, dict[str, Any]]
) -> None:
    modules = processes[step]["modules"]

    assert f"{OURS}cluster.http.h11_transport" in modules
    assert [name for name in modules if name.startswith(tuple(f"{prefix}." for prefix in unwanted))] == []
    assert [name for name in modules if name in unwanted] == []


def test_processes_of_one_task_hand_over_its_gang(processes: dict[str, dict[str, Any]]) -> None:
    assert processes["submit"]["trigger"] == processes["adopt"]["trigger"]
    assert processes["resume"]["value"] == [1, 2]
