"""The log lines about a gang in a queue, and about a gang that the scheduler cannot place."""

from __future__ import annotations

from airflow_provider_gangjobs.gang.labels import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.gang.state.observation import observe
from airflow_provider_gangjobs.gang.state.waiting import NO_CAUSE_NAMED
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from tests.unit.builders import REF, at, job, ranks

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


REJECTED = "0/1 nodes are available: 1 optimistic rejection in PostFilter."
NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu."


def reported(*messages_at: tuple[float, str]) -> list[str]:
    """Return what is reported of a gang whose pods have these messages at these times."""
    texts: list[str] = []
    reporter = PhaseReporter(lambda observation: texts.append(observation.waiting_for))
    for seconds, message in messages_at:
        pods = ranks(4, lambda one, message=message: one.unschedulable(message))
        reporter.report(observe(job().resumed(1).read(), pods, None, REF), at(seconds))
    return texts


def test_cause_that_is_named_soon_is_reported_alone():
    assert reported((1, REJECTED), (2, NO_ROOM), (9, REJECTED)) == ["Insufficient cpu on 2 of 2 nodes", NO_CAUSE_NAMED]


def test_cause_that_is_named_late_is_reported_after_its_absence():
    assert reported((1, REJECTED), (4, REJECTED), (9, NO_ROOM), (10, NO_ROOM)) == [
        NO_CAUSE_NAMED,
        "Insufficient cpu on 2 of 2 nodes",
    ]
