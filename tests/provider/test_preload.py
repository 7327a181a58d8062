"""The documented local settings of Airflow, which import `airflow_provider_gangjobs.preload`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness import ROOT
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

LIBRARIES_OF_THE_TRIGGERER = {"aiohttp", "kubernetes", "kubernetes_asyncio", "starlette"}
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


def modules_with_local_settings(argv: list[str], home: Path) -> set[str]:
    """Return the modules of a process of Airflow that has the documented local settings."""
    settings = home / "config" / LOCAL_SETTINGS.name
    settings.parent.mkdir()
    settings.write_text(LOCAL_SETTINGS.read_text())
    return set(run_python("-c", MODULES_OF_AIRFLOW.format(argv=argv), AIRFLOW_HOME=str(home))[-1].split())


def libraries_of_airflow(home: Path) -> set[str]:
    """Return the libraries of the triggerer that Airflow loads itself where it forks tasks, as in release 3.1.1."""
    statement = "import sys, airflow.sdk.execution_time.supervisor; print(*sys.modules)"
    return set(run_python("-c", statement, AIRFLOW_HOME=str(home))[-1].split()) & LIBRARIES_OF_THE_TRIGGERER


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
    assert modules & LIBRARIES_OF_THE_TRIGGERER <= libraries_of_airflow(tmp_path / "plain")


def test_documented_local_settings_do_not_preload_in_the_triggerer(tmp_path: Path) -> None:
    assert "airflow_provider_gangjobs.preload" not in modules_with_local_settings(["airflow", "triggerer"], tmp_path)
