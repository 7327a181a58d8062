"""The DAG of the migration guide, before and after: both are read by Airflow, and the gang does what the pod did."""

from __future__ import annotations

import base64
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gangjobs_sandbox.resources import CONFIGMAPS, SECRETS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.airflow_home import AirflowHome

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def samples(connected: AirflowHome) -> AirflowHome:
    return replace(connected, environment=connected.environment | {"AIRFLOW__CORE__DAGS_FOLDER": str(SAMPLES)})


def test_dag_of_the_guide_runs_with_the_models_of_the_pod_operator(
    samples: AirflowHome, cluster: SandboxThread
) -> None:
    token = {"metadata": {"name": "report-token"}, "data": {"token": base64.b64encode(b"secret").decode()}}
    cluster.call(lambda it: it.registry.create(SECRETS, token, "default"))
    for name, data in {"report-settings": {"LANGUAGE": "en"}, "report-title": {"title": "Visitors"}}.items():
        settings = {"metadata": {"name": name}, "data": data}
        cluster.call(lambda it, settings=settings: it.registry.create(CONFIGMAPS, settings, "default"))
    report = samples.test_dags("report_gang")["report_gang"]

    value = report.value("report")
    assert (report.state, value["title"], value["token"]) == ("success", "Visitors", 6)
    assert len(value["day"]) == len("2026-01-01")


def test_dag_before_the_migration_is_read_by_the_installed_provider(samples: AirflowHome) -> None:
    program = f"import sys; sys.path.insert(0, {str(SAMPLES)!r}); import report_pods"
    samples.run(sys.executable, "-c", program)
