"""Importing the interfaces of the provider in a DAG file loads no client library and nothing of the sandbox.

Each test uses a new process, because the process of the tests has imported these modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from textwrap import indent
from typing import TYPE_CHECKING

import pytest

from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = (
    "kubernetes",
    "kubernetes_asyncio",
    "aiohttp",
    "httptools",
    "airflow.providers.cncf",
    "starlette",
    "fastapi",
    "uvicorn",
    "httpx",
    "cryptography",
    "airflow_provider_gangjobs.cluster",
    "airflow_provider_gangjobs.submission",
    "airflow_provider_gangjobs.tracking",
    "gangjobs_sandbox",
)
BESIDE_AIRFLOW = """
import json, sys
from airflow.sdk import DAG, BaseHook, BaseOperator, BaseSensorOperator
import airflow.sdk.exceptions
import airflow.triggers.base
before = set(sys.modules)
with DAG("d", schedule=None):
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


DECORATED = """
from airflow_provider_gangjobs.decorators.gang_job import Gang, gang_job_task

@gang_job_task(image='python:3.12-slim', workers=4)
def count(urls: list[str], *, gang: Gang) -> dict:
    import json
    return {"rank": gang.rank, "rows": len(json.dumps(urls[gang.rank :: gang.world_size]))}

count(["{{ ds }}"])
count.expand(urls=[["a"], ["b"]])
"""


def loaded_by(statement: str, home: Path) -> list[str]:
    """Modules that the statement loads beyond those that Airflow itself needs for an empty DAG file."""
    # The statement is in a file, because a decorator reads the source of a DAG file.
    program = home / "program.py"
    program.write_text(BESIDE_AIRFLOW.format(statement=indent(statement, "    ")))
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=True,
    )
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def heavy(modules: list[str]) -> list[str]:
    return [name for name in modules if any(name == package or name.startswith(f"{package}.") for package in HEAVY)]


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(
            "from airflow_provider_gangjobs.operators.gang_job import GangJobOperator\n"
            "GangJobOperator(task_id='train', image='trainer', command=['{{ params.program }}'], workers=4)",
            id="an operator, imported and constructed",
        ),
        pytest.param(DECORATED, id="a decorated function, called and mapped"),
        pytest.param(
            "from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor\n"
            "GangJobSensor(task_id='wait', selector='team=vision')",
            id="a sensor, imported and constructed",
        ),
        pytest.param(
            "from airflow_provider_gangjobs.sensors.job_set import JobSetSensor\n"
            "JobSetSensor(task_id='wait', job_set='fit-{{ ds_nodash }}')",
            id="a sensor of JobSets, imported and constructed",
        ),
        pytest.param("import airflow_provider_gangjobs.hooks.gang_job", id="the hook"),
        pytest.param("import airflow_provider_gangjobs.exceptions", id="errors, for a retry policy"),
    ],
)
def test_dag_file_loads_no_client_library(statement: str, tmp_path: Path) -> None:
    modules = loaded_by(statement, tmp_path)

    assert any(name.startswith("airflow_provider_gangjobs.") for name in modules)
    assert heavy(modules) == []


def test_plugin_loads_nothing_but_itself(tmp_path: Path) -> None:
    # Airflow loads the plugin in every process: scheduler, triggerer, dag-processor, and tasks.
    modules = loaded_by("import airflow_provider_gangjobs.plugins.gang", tmp_path)

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
