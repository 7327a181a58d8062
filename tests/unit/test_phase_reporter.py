"""What the log of a task says about the position of a gang in its queue."""

from __future__ import annotations

from airflow_provider_gangjobs.gang.labels import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.gang.state.observation import observe
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from tests.unit.builders import REF, at, job

QUEUED = job().submitted_suspended().label(LABEL_KUEUE_QUEUE, "team").read()


def lines_at(*positions: int | None) -> list[str]:
    lines: list[str] = []
    reporter = PhaseReporter(lambda observation: lines.append(observation.line))
    for position in positions:
        reporter.report(observe(QUEUED, (), None, REF, queue_position=position), at(10))
    return [line.partition("queue team")[2] for line in lines]


def test_position_is_reported_when_it_is_known_and_each_time_that_it_is_halved():
    positions = [None, 12, 11, 8, 7, None, 6, 3, 1, 1]
    assert lines_at(*positions) == ["", *(f". Position {number} in the ClusterQueue" for number in (12, 7, 3, 1))]


def test_position_that_is_lost_is_not_reported():
    assert lines_at(2, None, 2, None) == [". Position 2 in the ClusterQueue"]
