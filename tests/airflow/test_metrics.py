"""A real triggerer sends the metrics of the alerts and of the dashboard, by the names that Prometheus gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.state.category import Category
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S
from tests.unit.test_alerts import labels_of_queries, metrics_of_queries

if TYPE_CHECKING:
    from tests.airflow.airflow_home import AirflowHome
    from tests.airflow.statsd import Exporter

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

RARE = {
    f"airflow_gangjobs_{name}"
    for name in (
        "back_offs",
        "credential_renewals",
        "harvest_failures",
        "request_retries",
        *(f"sweep_{what}" for what in ("deleted", "delivered", "ended", "failures", "finished", "released")),
    )
}
"""Counters of what happens in trouble. `tests/provider/test_trigger_process.py` shows that they exist."""


def test_triggerer_sends_the_metrics_of_alerts_and_dashboard(connected: AirflowHome, exporter: Exporter) -> None:
    with replace(connected, environment=connected.environment | exporter.settings).running() as airflow:
        assert airflow.api.trigger("three_ranks").wait() == "success"
        wait_for("a release", lambda: "airflow_gangjobs_harvest_released" in exporter.metrics)

        assert metrics_of_queries() - RARE <= set(exporter.metrics)
        found = exporter.metrics["airflow_gangjobs_diagnoses"]
        assert {label for label, _ in found} == labels_of_queries()
        assert {text for _, text in found} <= set(Category)
