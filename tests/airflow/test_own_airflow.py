"""The commands by which the page on the sandbox connects an Airflow of the user's own to a sandbox that stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scripts.local_airflow import PROJECT, environment
from scripts.ports import free_port
from tests.airflow.api import Api
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S, TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECTION = (PROJECT / "docs" / "sandbox.md").read_text().split("## With an Airflow of your own")[1].split("\n## ")[0]
SANDBOX, AIRFLOW = re.findall(r"```sh\n(.*?)```", SECTION, flags=re.DOTALL)

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the user works, with a program `gangjobs` and a program `airflow`."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "bin").mkdir()
    for name, module in {"gangjobs": "airflow_provider_gangjobs.cli.main", "airflow": "airflow"}.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[Api]:
    """The API of the user's Airflow, which runs beside the sandbox."""
    port = free_port()
    settings = environment(folder / "airflow", port=port, output=folder / "output")
    settings["PATH"] = f"{folder / 'bin'}:{settings['PATH']}"
    settings.pop("KUBECONFIG", None)

    def start(commands: str, name: str) -> subprocess.Popen[bytes]:
        *before, last = commands.strip().splitlines()
        shell = ["sh", "-c", "\n".join([*before, f"exec {last}"])]
        with (folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                shell, cwd=folder, env=settings, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    sandbox = start(SANDBOX, "sandbox")
    wait_for("the kubeconfig", (folder / "cluster" / "kubeconfig").exists)
    airflow = start(AIRFLOW, "airflow")
    try:
        api = Api(f"http://127.0.0.1:{port}")
        wait_for("Airflow", lambda: _is_ready(api))
        yield api
    finally:
        for process in (airflow, sandbox):
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(TIMEOUT_S)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # none is left


def _is_ready(api: Api) -> bool:
    api.log_in()
    return api.is_healthy()


def test_gang_runs_in_the_sandbox_beside_the_airflow_of_the_user(api: Api, folder: Path) -> None:
    run = api.trigger("tutorial_gang")

    assert run.wait() == "success"
    assert run.xcom("estimate") == 3.1407
    assert "tutorial-gang-throw-darts" in (folder / "sandbox.log").read_text()
