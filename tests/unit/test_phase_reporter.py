"""The log lines about a gang in a queue, and about a gang that the scheduler cannot place."""

from __future__ import annotations

from airflow_provider_gangjobs.gang.state.observation import observe
from airflow_provider_gangjobs.gang.state.waiting import NO_CAUSE_NAMED, Evidence
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from tests.unit.builders import REF, at, job, ranks

QUEUED = job().submitted_suspended().label(LABEL_KUEUE_QUEUE, "team").read()


def lines_at(*positions: int | None) -> list[str]:
    lines: list[str] = []
    reporter = PhaseReporter(lambda observation: lines.append(observation.line))
    for position in positions:
        reporter.report(observe(QUEUED, (), None, REF, Evidence(queue_position=position)), at(10))
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


def in_queue_at(*messages_at: tuple[float, str]) -> list[tuple[float, str]]:
    """Return at which times what is reported of a gang that waits in a queue, which gives these reasons at these times.

    The follower comes back when the reporter says so.
    """
    lines: list[tuple[float, str]] = []
    reporter = PhaseReporter(lambda observation: lines.append((now, observation.waiting_for)))
    message, changes, due = "", list(messages_at), float("inf")
    while changes or due < float("inf"):
        now = min(due, changes[0][0] if changes else due)
        if changes and changes[0][0] == now:
            message = changes.pop(0)[1]
        held_back_s = reporter.report(
            observe(QUEUED, (), None, REF, Evidence(queue_workload=refused(message))), at(now)
        )
        due = float("inf") if held_back_s is None else now + held_back_s
    return [(seconds, line.rpartition(": ")[2]) for seconds, line in lines]


def refused(message: str) -> KueueWorkloadView:
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
    return view(KueueWorkloadView, {"status": {"conditions": [condition]}})


def test_reason_that_replaces_another_is_reported_when_the_last_line_is_a_minute_old():
    assert in_queue_at((10, "no quota"), (11, "queue is stopping"), (500, "no quota")) == [
        (10, "no quota"),
        (70, "queue is stopping"),
        (500, "no quota"),
    ]


def test_reasons_that_alternate_are_reported_once_a_minute_and_the_present_one_last():
    changes = [(10.0 + number, ("no quota", "no node")[number % 2]) for number in range(151)]
    assert in_queue_at(*changes) == [(10, "no quota"), (71, "no node"), (132, "no quota")]


def test_reason_that_comes_back_within_a_minute_is_not_reported_twice():
    assert in_queue_at((10, "no quota"), (20, "no node"), (30, "no quota"), (900, "no quota")) == [(10, "no quota")]


def test_another_cause_is_reported_at_once_and_its_end_within_a_minute():
    held = "ClusterQueue c is inactive"
    assert in_queue_at((10, "no quota"), (12, held), (13, "no quota")) == [
        (10, "no quota"),
        (12, held),
        (72, "no quota"),
    ]


def test_reason_with_other_numbers_is_reported_every_fifteen_minutes():
    changes = [(10.0 + 30 * number, f"{number} more needed") for number in range(61)]
    assert in_queue_at(*changes) == [(10, "0 more needed"), (910, "30 more needed"), (1810, "60 more needed")]


def test_events_that_explain_nothing_do_not_repeat_the_line():
    lines: list[str] = []
    reporter = PhaseReporter(lambda observation: lines.append(observation.line))
    for has_events in (False, True):
        reporter.report(observe(QUEUED, (), None, REF), at(10), has_events=has_events)
    assert lines == ["queued: Waits for admission by Kueue queue team"]
