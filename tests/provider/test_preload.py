"""Airflow imports `airflow_provider_gangjobs.preload` by itself where it forks the processes of tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.automatic_preload import may_fork_tasks
from benchmarks.harness import ROOT
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

PRELOAD = "airflow_provider_gangjobs.preload"
RULE = "airflow_provider_gangjobs.automatic_preload"
LIBRARIES_OF_THE_TRIGGERER = {"aiohttp", "kubernetes", "kubernetes_asyncio", "starlette"}
MODULES_OF_AIRFLOW = """
import sys
sys.argv = {argv}
import airflow
print(*sys.modules)
"""
MODULES_OF_RULE = f"import sys; before = set(sys.modules); import {RULE}; print(*set(sys.modules) - before)"
SCHEDULER = ["/venv/bin/airflow", "scheduler", "--num-runs", "1"]
WORKER = ["airflow", "celery", "worker", "--queues", "gpu"]

FORK = {
    "scheduler": (SCHEDULER, []),
    "worker of Celery": (WORKER, []),
    "script on Windows": (["C:\\venv\\Scripts\\airflow.exe", "scheduler"], []),
    "path of the module": (["/site-packages/airflow/__main__.py", "scheduler"], []),
    "module": (["-m", "scheduler"], ["python", "-m", "airflow", "scheduler"]),
}
DO_NOT_FORK = {
    "no command": (["airflow"], []),
    "nothing": ([], []),
    "standalone": (["airflow", "standalone"], []),
    "triggerer": (["airflow", "triggerer"], []),
    "DAG processor": (["airflow", "dag-processor"], []),
    "API server": (["airflow", "api-server"], []),
    "other command of Celery": (["airflow", "celery", "flower"], []),
    "task of KubernetesExecutor": (["/site-packages/airflow/sdk/execution_time/execute_workload.py", "{}"], []),
    "task in a new interpreter": (["-c"], ["python", "-c", "..."]),
    "pytest": (["/venv/bin/pytest", "scheduler"], []),
    "other module": (["-m", "scheduler"], ["python", "-m", "other", "scheduler"]),
}


@pytest.mark.parametrize(("argv", "orig_argv"), FORK.values(), ids=FORK)
def test_scheduler_and_celery_worker_fork_tasks(argv: list[str], orig_argv: list[str]) -> None:
    assert may_fork_tasks(argv, orig_argv)


@pytest.mark.parametrize(("argv", "orig_argv"), DO_NOT_FORK.values(), ids=DO_NOT_FORK)
def test_other_processes_fork_no_tasks(argv: list[str], orig_argv: list[str]) -> None:
    assert not may_fork_tasks(argv, orig_argv)


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def modules_of_airflow(argv: list[str], home: Path, **environment: str) -> set[str]:
    """Return the modules of a process of Airflow after `import airflow`."""
    done = run_python("-c", MODULES_OF_AIRFLOW.format(argv=argv), AIRFLOW_HOME=str(home), **environment)
    return set(done.stdout.splitlines()[-1].split())


def libraries_of_airflow(home: Path) -> set[str]:
    """Return the libraries of the triggerer that Airflow loads itself where it forks tasks, as in release 3.1.1."""
    statement = "import sys, airflow.sdk.execution_time.supervisor; print(*sys.modules)"
    loaded = run_python("-c", statement, AIRFLOW_HOME=str(home)).stdout.splitlines()[-1].split()
    return set(loaded) & LIBRARIES_OF_THE_TRIGGERER


@pytest.mark.parametrize("argv", [SCHEDULER, pytest.param(WORKER, marks=pytest.mark.slow)], ids=["scheduler", "worker"])
def test_airflow_preloads_where_it_forks_tasks(argv: list[str], tmp_path: Path) -> None:
    """No Celery is installed here, so the command line of a worker stands for the worker."""
    modules = modules_of_airflow(argv, tmp_path)

    assert PRELOAD in modules
    assert modules & LIBRARIES_OF_THE_TRIGGERER <= libraries_of_airflow(tmp_path / "plain")


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        pytest.param(["airflow", "triggerer"], {}, id="another process", marks=pytest.mark.slow),
        pytest.param(SCHEDULER, {"AIRFLOW__GANGJOBS__PRELOAD": "False"}, id="switched off"),
        pytest.param(
            SCHEDULER,
            {"AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor"},
            id="another executor",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_airflow_does_not_preload_elsewhere(argv: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    modules = modules_of_airflow(argv, tmp_path, **environment)

    assert (RULE in modules, PRELOAD in modules) == (True, False)


def test_preload_that_fails_is_logged_and_does_not_fail_airflow(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{PRELOAD!r}] = None")
    done = run_python(
        "-c",
        MODULES_OF_AIRFLOW.format(argv=SCHEDULER),
        AIRFLOW_HOME=str(tmp_path / "home"),
        PYTHONPATH=f"{tmp_path}:{ROOT}",
    )

    assert "airflow.settings" in done.stdout
    assert "The processes of tasks import the provider themselves" in done.stderr + done.stdout


def test_rule_imports_nothing_in_other_processes() -> None:
    imported = run_python("-c", MODULES_OF_RULE).stdout.split()

    assert sorted(name for name in imported if name != "__future__") == [RULE.rpartition(".")[0], RULE]
