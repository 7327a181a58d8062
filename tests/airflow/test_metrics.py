"""A real triggerer sends the metrics of the alerts and of the dashboard, by the names that Prometheus gives them."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.state.category import Category
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S
from tests.unit.test_alerts import labels_of_queries, metrics_of_queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.airflow_home import AirflowHome

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


@dataclass
class Exporter:
    """Receives StatsD metrics with tags as the statsd exporter does: a character that is not allowed becomes `_`."""

    socket: socket.socket
    metrics: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """Labels and their values by the name of the metric."""

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def receive(self) -> None:
        """Receive until the socket is shut down."""
        while datagram := self.socket.recv(65536):
            for line in datagram.decode().splitlines():
                name, *tags = line.rpartition(":")[0].split(",")
                labels = self.metrics.setdefault(re.sub(r"\W", "_", name), set())
                labels.update((tag, text) for tag, _, text in (one.partition("=") for one in tags))


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        found = Exporter(receiver)
        thread = Thread(target=found.receive)
        thread.start()
        yield found
        receiver.sendto(b"", receiver.getsockname())
        thread.join()


def test_triggerer_sends_the_metrics_of_alerts_and_dashboard(connected: AirflowHome, exporter: Exporter) -> None:
    settings = {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(exporter.port),
        "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
    }
    with replace(connected, environment=connected.environment | settings).running() as airflow:
        assert airflow.api.trigger("three_ranks").wait() == "success"
        wait_for("a release", lambda: "airflow_gangjobs_harvest_released" in exporter.metrics)

        assert metrics_of_queries() - RARE <= set(exporter.metrics)
        found = exporter.metrics["airflow_gangjobs_diagnoses"]
        assert {label for label, _ in found} == labels_of_queries()
        assert {text for _, text in found} <= set(Category)
