"""The tutorial and the DAG of the migration guide, with the built wheels and without the source tree of the provider.

Airflow comes from the environment of the tests, because the tests load no packages from an index. Everything that this
repository builds comes from the wheels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
SHELL = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
SAVED_AS = re.findall(r"Save this file as `([^`]*)`.*?literalinclude\} (\S+)", PAGE, flags=re.DOTALL)

LIST_OBJECTS = """python -c '
from kubernetes import client, config
config.load_kube_config("{kubeconfig}")
core, batch = client.CoreV1Api(), client.BatchV1Api()
gang = dict(label_selector="gangjobs.airflow/gang")
print("Job " * len(batch.list_namespaced_job("default", **gang).items))
print("Pod " * len(core.list_namespaced_pod("default", **gang).items))
print("ConfigMap " * len(core.list_namespaced_config_map("default", **gang).items))
'"""
"""What kubectl lists of gangs, by the official client."""
CREATE_OBJECTS = """python -c '
from kubernetes import client, config
config.load_kube_config("{kubeconfig}")
core = client.CoreV1Api()
core.create_namespaced_secret("default", dict(metadata=dict(name="report-token"), stringData=dict(token="secret")))
for name, data in dict(settings=dict(LANGUAGE="en"), title=dict(title="Visitors")).items():
    core.create_namespaced_config_map("default", dict(metadata=dict(name="report-" + name), data=data))
'"""
"""What the DAG of the migration guide expects in its namespace."""

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(4 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with both wheels, and with the dependencies of the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, ROOT / "gangjobs_sandbox"):
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(build, cwd=project, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    wheels = map(str, folder.glob("*.whl"))
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels]
    subprocess.run(install, check=True)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    # A folder that a .pth file names is searched last. The .pth files in it, such as that of the source tree, are not
    # read.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    airflow = folder / "env" / "bin" / "airflow"
    airflow.write_text(f"#!{python}\nfrom airflow.__main__ import main\nmain()\n")
    airflow.chmod(0o755)
    return folder / "env"


@pytest.fixture
def kubeconfig(environment: Path) -> Iterator[str]:
    """The path of the kubeconfig that `gangjobs sandbox up` prints. The sandbox stays until the end of the test."""
    with subprocess.Popen([environment / "bin" / "gangjobs", "sandbox", "up"], stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            yield next(line.split()[1] for line in up.stdout if line.startswith("kubeconfig:"))
        finally:
            up.terminate()


@pytest.fixture(scope="module")
def shell(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Run commands in an empty folder, with the settings that the tutorial exports."""
    folder = tmp_path_factory.mktemp("gangs")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    # The default time limits of Airflow are too short for a busy machine.
    patient = {"AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": str(AIRFLOW_TIMEOUT_S)}
    path = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
    exports = "\n".join(re.findall(r"^export .*$", PAGE, flags=re.MULTILINE))

    def run(commands: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"{exports}\n{commands}"],
            cwd=folder,
            env={**inherited, **patient, "PATH": path, "VIRTUAL_ENV": str(environment)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * AIRFLOW_TIMEOUT_S,
            check=False,
        )
        return done.stdout

    return run


def test_tutorial_works_from_the_wheels(shell: Callable[[str], str], environment: Path) -> None:
    (install, prepare, first, *_), ((saved_as, source),) = SHELL, SAVED_AS
    assert "pip install 'airflow-provider-gangjobs[sandbox]'" in install
    where = shell("python -c 'import airflow_provider_gangjobs, gangjobs_sandbox as s; print(s.__file__, s.__path__)'")
    assert str(environment) in where

    prepared = shell(prepare)
    shell(f"cp {(ROOT / 'docs' / source).resolve()} {saved_as}")
    output = shell(first)

    assert "4 workers, gang scheduling by Workload API" in output, prepared + output
    assert "Returned value was: 3.1407" in output
    assert str(ROOT / "airflow_provider_gangjobs") not in output


def test_sandbox_that_stays_shows_the_gang_that_failed(shell: Callable[[str], str], kubeconfig: str) -> None:
    (_, prepare, *_, last), ((saved_as, source),) = SHELL, SAVED_AS
    run_dag, kubectl = last.splitlines()
    shell(f"{prepare}\nmkdir -p dags; cp {(ROOT / 'docs' / source).resolve()} {saved_as}")
    output = shell(run_dag.replace("PRINTED_PATH", kubeconfig))
    listed = shell(LIST_OBJECTS.format(kubeconfig=kubeconfig))

    assert "the darts of this rank are gone" in output
    assert kubectl == "kubectl --kubeconfig PRINTED_PATH get jobs,pods,configmaps"
    assert {"Job", "Pod", "ConfigMap"} <= set(listed.split()), output


def test_dag_of_the_migration_guide_works_from_the_wheels(shell: Callable[[str], str], kubeconfig: str) -> None:
    prepare = SHELL[1]
    shell(f"{prepare}\nmkdir -p dags; cp {ROOT / 'docs' / 'samples' / 'report_gang.py'} dags")
    created = shell(CREATE_OBJECTS.format(kubeconfig=kubeconfig))
    output = shell(f"KUBECONFIG={kubeconfig} airflow dags test report_gang")
    # The program of the DAG fails without its settings, its token, or its title.
    assert re.search(r"Marking run <DagRun report_gang .*> successful", output), created + output
    assert "1 rank succeeded, 0 failed" in output


def test_provider_is_known_to_airflow_by_its_wheel(shell: Callable[[str], str]) -> None:
    listed = shell("airflow providers get airflow-provider-gangjobs --output json")
    assert '"Provider": "airflow-provider-gangjobs"' in re.sub(r"\s+", " ", listed)
