"""The interfaces of users: what their import loads, and that the hook has the use cases of the service."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.service import GangService
from benchmarks.harness import ROOT
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path


# -- Importing the interfaces of the provider in a DAG file loads no client library and nothing of the sandbox -------

HEAVY = (
    "kubernetes",
    "kubernetes_asyncio",
    "aiohttp",
    "airflow.providers.cncf",
    "starlette",
    "fastapi",
    "uvicorn",
    "httpx",
    "cryptography",
    "airflow_provider_gangjobs.cluster",
    "airflow_provider_gangjobs.parameters.unknown_parameters",
    "airflow_provider_gangjobs.submission",
    "airflow_provider_gangjobs.tracking",
    "gangjobs_sandbox",
)
LOADED_IN_FORKS = """
import importlib.util, json, os, sys
from airflow.sdk import DAG, BaseHook, BaseOperator, BaseSensorOperator
import airflow.sdk.exceptions
import airflow.triggers.base
before = set(sys.modules)
for path in sys.argv[1:]:
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        assert status == 0, path
    else:
        with DAG("d", schedule=None):
            spec = importlib.util.spec_from_file_location("dag_file", path)
            module = sys.modules["dag_file"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        print(json.dumps(sorted(set(sys.modules) - before - {"dag_file"})), flush=True)
        os._exit(0)
"""
"""A program that imports what Airflow needs for an empty DAG file, and then forks a process for each DAG file. Each of
them prints the modules that its DAG file has loaded."""


DECORATED = """
from airflow_provider_gangjobs.decorators.gang_job import Gang, gang_job_task

@gang_job_task(image='python:3.12-slim', workers=4)
def count(urls: list[str], *, gang: Gang) -> dict:
    import json
    return {"rank": gang.rank, "rows": len(json.dumps(urls[gang.rank :: gang.world_size]))}

count(["{{ ds }}"])
count.expand(urls=[["a"], ["b"]])
"""


DAG_FILES = {
    "an operator, imported and constructed": (
        "from airflow_provider_gangjobs.operators.gang_job import GangJobOperator\n"
        "GangJobOperator(task_id='train', image='trainer', command=['{{ params.program }}'], workers=4)"
    ),
    "a decorated function, called and mapped": DECORATED,
    "a sensor, imported and constructed": (
        "from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor\n"
        "GangJobSensor(task_id='wait', selector='team=vision')"
    ),
    "the hook": "import airflow_provider_gangjobs.hooks.gang_job",
    "errors, for a retry policy": "import airflow_provider_gangjobs.exceptions",
}
PLUGIN = "import airflow_provider_gangjobs.plugins.gang"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Modules that a DAG file loads beyond those that Airflow itself needs for an empty one, by the DAG file."""
    home = tmp_path_factory.mktemp("home")
    # A DAG file is a file, because a decorator reads its source.
    paths = {text: home / f"dag_{number}.py" for number, text in enumerate((*DAG_FILES.values(), PLUGIN))}
    for text, path in paths.items():
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", LOADED_IN_FORKS, *map(str, paths.values())],
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
    )
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return dict(zip(paths, printed, strict=True))


def heavy(modules: list[str]) -> list[str]:
    return [name for name in modules if any(name == package or name.startswith(f"{package}.") for package in HEAVY)]


@pytest.mark.parametrize("dag_file", DAG_FILES.values(), ids=DAG_FILES)
def test_dag_file_loads_no_client_library(dag_file: str, loaded: dict[str, list[str]]) -> None:
    modules = loaded[dag_file]

    assert any(name.startswith("airflow_provider_gangjobs.") for name in modules)
    assert heavy(modules) == []


def test_plugin_loads_nothing_but_itself(loaded: dict[str, list[str]]) -> None:
    # Airflow loads the plugin in every process: scheduler, triggerer, dag-processor, and tasks.
    modules = loaded[PLUGIN]

    package = "airflow_provider_gangjobs"
    ours = {name for name in modules if name.startswith(f"{package}.")}
    assert ours == {f"{package}.plugins", f"{package}.plugins.gang"}
    assert heavy(modules) == []


def test_provider_info_loads_only_itself(tmp_path: Path) -> None:
    # Airflow has read the provider info before any other module is imported.
    code = "import sys; before = set(sys.modules); import airflow_provider_gangjobs.get_provider_info; "
    code += "print(*sorted(m for m in set(sys.modules) - before if m.startswith('airflow')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=5 * TIMEOUT_S, check=True
    )

    assert done.stdout.split() == ["airflow_provider_gangjobs", "airflow_provider_gangjobs.get_provider_info"]


# -- The hook has the documented use cases of the service, as blocking methods that agree with the coroutines --------

COROUTINES = {
    name for name, _ in inspect.getmembers(GangService, inspect.iscoroutinefunction) if not name.startswith("_")
}
USE_CASES = sorted(COROUTINES & vars(GangJobHook).keys())
PAGES = ("reference.md", "submission.md")


def test_hook_has_exactly_the_documented_use_cases_of_the_service() -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in PAGES)
    documented = set(re.findall(r"\bhook\.(\w+)\(", text))

    assert documented & COROUTINES == set(USE_CASES)


@pytest.mark.parametrize("name", USE_CASES)
def test_method_of_the_hook_agrees_with_the_service_and_blocks(name: str) -> None:
    method: Any = getattr(GangJobHook, name)
    coroutine: Any = getattr(GangService, name)

    assert inspect.signature(method) == inspect.signature(coroutine)
    assert method.__doc__ == coroutine.__doc__
    assert method.__doc__, "a use case is documented"
    assert not inspect.iscoroutinefunction(method)
