"""Receives the metrics of an Airflow in place of a statsd exporter."""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Exporter:
    """Receives StatsD metrics with tags as the statsd exporter does: a character that is not allowed becomes `_`."""

    socket: socket.socket
    metrics: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """Labels and their values by the name of the metric."""
    lines: list[str] = field(default_factory=list)
    """The metrics as they were sent."""

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    @property
    def settings(self) -> dict[str, str]:
        """The settings of an Airflow that sends its metrics here."""
        return {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(self.port),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
        }

    def receive(self) -> None:
        """Receive until the socket is shut down."""
        while datagram := self.socket.recv(65536):
            for line in datagram.decode().splitlines():
                self.lines.append(line)
                name, *tags = line.rpartition(":")[0].split(",")
                labels = self.metrics.setdefault(re.sub(r"\W", "_", name), set())
                labels.update((tag, text) for tag, _, text in (one.partition("=") for one in tags))


@contextmanager
def receiving() -> Iterator[Exporter]:
    """Receive metrics while the block runs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        found = Exporter(receiver)
        thread = Thread(target=found.receive)
        thread.start()
        yield found
        receiver.sendto(b"", receiver.getsockname())
        thread.join()
