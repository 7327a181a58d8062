"""The harness runs Airflow without gangs. If these tests fail, the other failures are not the fault of the provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.airflow_home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


def test_plain_dag_runs_by_itself(home: AirflowHome) -> None:
    report = home.test_dags("plain")["plain"]

    assert (report.state, report.value("answer")) == ("success", 42)
