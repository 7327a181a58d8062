"""Each distribution works where it is installed without the other one, from its wheel."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client, config

from tests import wheels
from tests.sandbox.host_processes import until
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POD: dict[str, Any] = {
    "metadata": {"name": "greeter"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "command": ["sh", "-c", "echo hello"]}],
    },
}
IMPORTABLE = """
import importlib.util
print(*(name for name in {names} if importlib.util.find_spec(name)))
"""
DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

with DAG("training") as dag:
    GangJobOperator(task_id="train", image="trainer", command=["train"], workers=4)
print("parsed", dag.task_ids)
"""


@pytest.fixture(scope="module")
def sandbox_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the sandbox and without the provider."""
    folder = tmp_path_factory.mktemp("sandbox")
    return wheels.environment_with(wheels.built_wheel(wheels.SANDBOX, folder), folder / "env")


@pytest.fixture(scope="module")
def provider_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the provider and Airflow, and without the sandbox."""
    folder = tmp_path_factory.mktemp("provider")
    return wheels.environment_with(wheels.built_wheel(wheels.PROVIDER, folder), folder / "env")


def output_of(*command: Any, cwd: Path) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)),
        env=inherited | {"AIRFLOW_HOME": str(cwd)},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout


def importable(programs: Path, *names: str, cwd: Path) -> set[str]:
    return set(output_of(programs / "python", "-c", IMPORTABLE.format(names=names), cwd=cwd).split())


@pytest.fixture
def core(sandbox_programs: Path, tmp_path: Path) -> Iterator[client.CoreV1Api]:
    """A client of a sandbox that runs for the length of a test, and goes down at its end."""
    command = [sandbox_programs / "gangjobs-sandbox", "up", "--nodes", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path) as up:
        try:
            assert up.stdout is not None
            kubeconfig = next((line.split()[1] for line in up.stdout if line.startswith("kubeconfig:")), None)
            assert kubeconfig, "it ended without a cluster"
            with config.new_client_from_config(kubeconfig) as api:
                yield client.CoreV1Api(api)
        finally:
            up.terminate()
            assert up.wait(TIMEOUT_S) == 0


def test_sandbox_alone_runs_a_pod(core: client.CoreV1Api) -> None:
    assert [node.metadata.name for node in core.list_node().items] == ["node-0"]
    core.create_namespaced_pod("default", POD)
    until(lambda: core.read_namespaced_pod("greeter", "default").status.phase == "Succeeded")
    log = core.read_namespaced_pod_log("greeter", "default", _preload_content=False)
    assert log.data == b"hello\n"


def test_sandbox_is_installed_without_airflow_and_provider(sandbox_programs: Path, tmp_path: Path) -> None:
    names = ("gangjobs_sandbox", "airflow", "airflow_provider_gangjobs")
    assert importable(sandbox_programs, *names, cwd=tmp_path) == {"gangjobs_sandbox"}


def test_sandbox_alone_runs_a_command(sandbox_programs: Path, tmp_path: Path) -> None:
    command = ["run", "--nodes", "0", "--", "sh", "-c", "test -f $KUBECONFIG && echo found it"]
    assert output_of(sandbox_programs / "gangjobs-sandbox", *command, cwd=tmp_path) == "found it\n"


@pytest.mark.slow
def test_provider_alone_parses_a_dag(provider_programs: Path, tmp_path: Path) -> None:
    assert importable(provider_programs, "airflow", "gangjobs_sandbox", cwd=tmp_path) == {"airflow"}
    (tmp_path / "dag.py").write_text(DAG_FILE)
    parsed = output_of(provider_programs / "python", "dag.py", cwd=tmp_path)
    assert parsed.endswith("parsed ['train']\n")


def test_command_of_the_provider_alone_says_how_to_install_the_sandbox(provider_programs: Path, tmp_path: Path) -> None:
    shown = output_of(provider_programs / "gangjobs", "sandbox", "up", cwd=tmp_path)
    assert "pip install 'airflow-provider-gangjobs[sandbox]'" in shown
