"""Processes of tasks that are forked after the import of `airflow_provider_gangjobs.preload`."""

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
    from pathlib import Path

    from gangjobs_sandbox.thread import SandboxThread

LIBRARIES_OF_THE_TRIGGERER = {"aiohttp", "kubernetes", "kubernetes_asyncio", "httptools", "starlette"}
LOCAL_SETTINGS = ROOT / "docs" / "samples" / "airflow_local_settings.py"
MODULES_OF_AIRFLOW = """
import sys
sys.argv = {argv}
import airflow
print(*sys.modules)
"""


def run_python(*arguments: str, **environment: str) -> list[str]:
    """Run Python, and return the lines that it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    return done.stdout.splitlines()


def fork_task(step: str, task: dict[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Run a part of a task: what it printed, the modules that it imported, and what the parent shared with it."""
    arguments = ("-m", "tests.provider.forked_task", "ours", step, json.dumps(task))
    printed, imported, left_behind = map(json.loads, run_python(*arguments)[-3:])
    return printed, imported, left_behind


@pytest.fixture(scope="module")
def parts(embedded: SandboxThread) -> dict[str, tuple[dict[str, Any], list[str], list[str]]]:
    """The parts of one task, by step."""
    extra = {"kube_config_path": str(embedded.kubeconfig_path), "namespace": "default"}
    described = json.dumps({"conn_type": "kubernetes", "extra": extra})
    script = 'echo said; echo "[1, 2]" > "$GANG_RESULT_PATH"'
    task: dict[str, Any] = {"run_id": uuid4().hex, "claim": str(uuid4()), "script": script, "namespace": "default"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "AIRFLOW_CONN_KUBERNETES_DEFAULT", described)
        forked = {step: fork_task(step, task) for step in ("submit", "adopt")}
        task["event"] = run_serialized_trigger(**forked["adopt"][0]["trigger"])
        return forked | {"resume": fork_task("resume", task)}


@pytest.mark.parametrize("step", ["submit", "adopt", "resume"])
def test_forked_process_of_a_task_imports_nothing_of_the_provider(step: str, parts: dict[str, Any]) -> None:
    _, imported, _ = parts[step]

    assert [name for name in imported if name.startswith("airflow_provider_gangjobs")] == []


def test_forked_processes_run_one_gang_to_its_results(parts: dict[str, Any]) -> None:
    submitted, adopted, resumed = (printed for printed, _, _ in parts.values())

    assert submitted["trigger"] == adopted["trigger"]
    assert resumed["value"] == [1, 2]


def test_preload_leaves_nothing_behind_that_a_fork_must_not_share(parts: dict[str, Any]) -> None:
    """A thread, a connection or an event loop of the parent does not work in the forked process."""
    assert [left_behind for _, _, left_behind in parts.values()] == [[], [], []]


def modules_with_local_settings(argv: list[str], home: Path) -> set[str]:
    """Return the modules of a process of Airflow that has the documented local settings."""
    settings = home / "config" / LOCAL_SETTINGS.name
    settings.parent.mkdir()
    settings.write_text(LOCAL_SETTINGS.read_text())
    return set(run_python("-c", MODULES_OF_AIRFLOW.format(argv=argv), AIRFLOW_HOME=str(home))[-1].split())


@pytest.mark.parametrize(
    "argv",
    [
        ["airflow", "scheduler"],
        pytest.param(["airflow", "celery", "worker", "--queues", "gpu"], marks=pytest.mark.slow),
    ],
)
def test_documented_local_settings_preload_where_tasks_are_forked(argv: list[str], tmp_path: Path) -> None:
    modules = modules_with_local_settings(argv, tmp_path)

    assert "airflow_provider_gangjobs.preload" in modules
    assert modules & LIBRARIES_OF_THE_TRIGGERER == set()


def test_documented_local_settings_do_not_preload_in_the_triggerer(tmp_path: Path) -> None:
    assert "airflow_provider_gangjobs.preload" not in modules_with_local_settings(["airflow", "triggerer"], tmp_path)
