"""The example DAGs whose gangs have a launcher."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.airflow.conftest import cluster, connected, home
from tests.launchers import pytorch
from tests.launchers.conftest import create_secret
from tests.launchers.programs import PYTHON, needs, without_mpi
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.airflow_home import AirflowHome

__all__ = ["cluster", "connected", "home"]

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]
EXAMPLES = Path(__file__).parents[2] / "dags_examples"


@pytest.fixture(scope="module")
def examples(connected: AirflowHome) -> AirflowHome:
    return replace(connected, environment=connected.environment | {"AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES)})


@needs(pytorch.PYTORCH.unavailable())
def test_torchrun_trains_one_network_on_all_ranks(examples: AirflowHome, monkeypatch: pytest.MonkeyPatch) -> None:
    # The nodes of the cluster run in this process, and containers get its PATH.
    monkeypatch.setenv("PATH", f"{pytorch.PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    output = examples.run_forked("airflow", "dags", "test", "train_torch_gang", "2026-01-01")

    assert "[rank 0] step 200/200  loss 0.0" in output
    assert re.search(r"2 processes with PyTorch 2\.\d+\S*: loss 0\.0\d+ on 512 points", output)
    assert "succeeded: 2 ranks succeeded, 0 failed" in output


@needs(without_mpi())
def test_mpirun_solves_the_equation_on_all_ranks(examples: AirflowHome, cluster: SandboxThread, ssh_key: Path) -> None:
    create_secret(cluster, ssh_key)
    conf = json.dumps({"python": PYTHON})
    output = examples.run_forked("airflow", "dags", "test", "solve_poisson_gang", "2026-01-01", "-c", conf)

    assert "[rank 0] 6 processes on 3 hosts: " in output
    assert "succeeded: 3 ranks succeeded, 0 failed" in output
