"""What this repository builds: wheels and sdists, each of which works without the other distribution."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
from kubernetes import client, config

import airflow_provider_gangjobs
import gangjobs_sandbox
from tests import wheels
from tests.timeouts import TIMEOUT_S, poll
from tests.wheels import PROVIDER, REPOSITORY, SANDBOX, built_wheel, requirements_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# -- What this repository builds: the wheels of the provider and of the sandbox, each without the other, and
#    sdists ----------------------------------------------------------------------------------------------------------


def built_sdist(project, folder):
    """Build an sdist, and return its path."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def provider_wheel(tmp_path_factory):
    return built_wheel(PROVIDER, tmp_path_factory.mktemp("provider"))


@pytest.fixture(scope="module")
def sandbox_wheel(tmp_path_factory):
    return built_wheel(SANDBOX, tmp_path_factory.mktemp("sandbox"))


def files_in(wheel):
    """The paths of the files in a wheel, without those of its metadata."""
    return {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}


def package_files(package, suffixes):
    """The paths, relative to the repository, of the files that a package is made of."""
    found = (path for path in (REPOSITORY / package).rglob("*") if path.suffix in suffixes or path.name == "py.typed")
    return {path.relative_to(REPOSITORY).as_posix() for path in found}


def call_gangjobs(*arguments, wheels):
    """Run the command on the given wheels and the standard library, without anything else that is installed."""
    return subprocess.run(
        [sys.executable, "-S", "-P", "-m", "airflow_provider_gangjobs.cli.main", *arguments],
        env={"PYTHONPATH": os.pathsep.join(map(str, wheels))},
        capture_output=True,
        text=True,
        check=False,
    )


def members_of(sdist):
    """The files in an sdist, as what tarfile tells of each, by its path below the folder of the sdist."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2]: member for member in archive}


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="the sdist is compared with the files of the repository")
def test_sdist_of_the_provider_contains_all_that_its_tests_and_the_makefile_need(tmp_path):
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    tracked = {path for path in listed.splitlines() if not path.startswith(".")}
    present = {path for path in tracked if (REPOSITORY / path).exists()}
    assert present <= members_of(built_sdist(REPOSITORY, tmp_path)).keys()


def test_sdist_of_the_sandbox_contains_the_license_itself(tmp_path):
    assert members_of(built_sdist(REPOSITORY / "gangjobs_sandbox", tmp_path))["LICENSE"].isfile()


def test_wheel_of_the_provider_contains_its_package_only(provider_wheel):
    assert {path.partition("/")[0] for path in files_in(provider_wheel)} == {"airflow_provider_gangjobs"}


def test_wheel_of_the_sandbox_contains_its_package_whole(sandbox_wheel):
    assert files_in(sandbox_wheel) == package_files("gangjobs_sandbox", {".py", ".json"})


def test_wheel_of_the_sandbox_contains_the_license(sandbox_wheel):
    with ZipFile(sandbox_wheel) as archive:
        (license_file,) = (name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
        assert archive.read(license_file) == (REPOSITORY / "LICENSE").read_bytes()


def test_extra_of_the_provider_installs_the_sandbox(provider_wheel):
    requirement = requirements_of(provider_wheel)["gangjobs-sandbox"]
    assert requirement.marker.evaluate({"extra": "sandbox"})
    assert not requirement.marker.evaluate({"extra": ""})


def test_extra_of_the_provider_accepts_the_sandbox_of_the_same_commit(provider_wheel):
    requirement = requirements_of(provider_wheel)["gangjobs-sandbox"]
    assert requirement.specifier.contains(gangjobs_sandbox.__version__)
    assert gangjobs_sandbox.__version__ == airflow_provider_gangjobs.__version__


def test_links_of_the_provider_work_on_the_page_of_an_index(provider_wheel):
    with ZipFile(provider_wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        readme = archive.read(path).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)#]+)", readme)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    own = f"/v{airflow_provider_gangjobs.__version__}/"
    assert [link for link in links if own in link and not (REPOSITORY / link.partition(own)[2]).exists()] == []


@pytest.mark.parametrize("built", ["provider_wheel", "sandbox_wheel"])
def test_next_major_version_of_a_library_is_excluded(built, request):
    """These are bounded by Airflow and the cncf provider, and break nothing that is used here."""
    unbounded = {"kubernetes", "cryptography"}
    required = {n: r for n, r in requirements_of(request.getfixturevalue(built)).items() if not r.marker}
    assert {n for n, r in required.items() if "<" not in str(r.specifier)} <= unbounded


def test_sandbox_requires_neither_the_provider_nor_airflow(sandbox_wheel):
    assert not [name for name in requirements_of(sandbox_wheel) if "airflow" in name]


def test_command_without_the_sandbox_names_the_extra_to_install(provider_wheel):
    called = call_gangjobs("sandbox", "run", "--", "true", wheels=[provider_wheel])
    assert called.returncode == 1
    assert "pip install 'airflow-provider-gangjobs[sandbox]'" in called.stderr
    assert called.stderr.count("\n") == 1


def test_command_with_the_sandbox_offers_its_actions(provider_wheel, sandbox_wheel):
    called = call_gangjobs("sandbox", "--help", wheels=[provider_wheel, sandbox_wheel])
    assert called.returncode == 0, called.stderr
    assert {"up", "run"} <= set(called.stdout.split())


# -- Each distribution works where it is installed without the other one, from its wheel -----------------------------

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
    poll(lambda: core.read_namespaced_pod("greeter", "default").status.phase == "Succeeded")
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
