"""Why a gang waits in a queue of Kueue, by the conditions that the real manager writes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.state.stopped import Stopper
from airflow_provider_gangjobs.gang.state.waiting import (
    evicted_at,
    explain_queue,
    given_up,
    has_queue_decision,
)
from airflow_provider_gangjobs.kube.views import EventView, KueueWorkloadView, view
from tests.unit.builders import condition, kueue_workload

ASSIGN = "couldn't assign flavors to pod set main: "


def pending(message: str, reason: str = "Pending") -> dict[str, Any]:
    return condition("QuotaReserved", False, 1, reason, message)


def stops(**counts: int) -> dict[str, Any]:
    """How often `waitForPodsReady` has stopped the gang, by the underlying cause."""
    evictions = [
        {"reason": "PodsReadyTimeout", "underlyingCause": cause, "count": count} for cause, count in counts.items()
    ]
    return {"schedulingStats": {"evictions": evictions}}


PREEMPTED = condition("Evicted", True, 1, "Preempted", "Preempted to accommodate a workload (UID: u, JobUID: j)")
NOT_READY = condition("Evicted", True, 1, "PodsReadyTimeout", "Exceeded the PodsReady timeout team-a/job-train-1a2b3")
STOPPED = condition("Evicted", True, 1, "ClusterQueueStopped", "The ClusterQueue is stopped")
ADMITTED = condition("Admitted", True, 1, "Admitted", "The workload is admitted")
LIMIT = condition(
    "Evicted",
    True,
    1,
    "DeactivatedDueToRequeuingLimitExceeded",
    "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
)
AGAIN = pending(f"{ASSIGN}insufficient unused quota for cpu in flavor f, 2 more needed")
TOO_MUCH = pending(f"{ASSIGN}insufficient quota for cpu in flavor f, request (6) > maximum capacity (4)")
RESERVED = condition("QuotaReserved", True, 1, "QuotaReserved", "Quota reserved in ClusterQueue c")
CASES = {
    "no Workload yet": (None, "QueueWaits"),
    "Workload without conditions": (kueue_workload(), "QueueWaits"),
    "no quota now": (kueue_workload(AGAIN), "QueuePending"),
    "never fits": (kueue_workload(TOO_MUCH), "QueueRefuses"),
    "preempted": (kueue_workload(pending(PREEMPTED["message"]), PREEMPTED), "QueueStops"),
    "preempted, and judged again": (kueue_workload(AGAIN, PREEMPTED), "QueuePending"),
    "not ready in time": (kueue_workload(pending(NOT_READY["message"]), NOT_READY), "NotReadyInTime"),
    "not ready in time, and judged again": (kueue_workload(pending(f"{ASSIGN}no node"), NOT_READY), "QueuePending"),
    "its queue was held, and does not suffice any more": (kueue_workload(TOO_MUCH, STOPPED), "QueueRefuses"),
    "being stopped, with quota": (kueue_workload(STOPPED, RESERVED, ADMITTED), "QueueStops"),
    "given up": (kueue_workload(pending("evicted"), LIMIT, active=False), "WorkloadInactive"),
    "quota reserved, checks to do": (kueue_workload(RESERVED), "QueueChecks"),
    "admitted": (
        kueue_workload(RESERVED, ADMITTED, condition("Evicted", False, 1, "QuotaReserved", "Previously: stopped")),
        "QueueAdmitted",
    ),
}


@pytest.mark.parametrize(("seen", "cause"), CASES.values(), ids=CASES)
def test_cause_of_a_wait(seen: KueueWorkloadView | None, cause: str) -> None:
    assert explain_queue("team", seen).cause == cause


def test_wait_of_a_gang_that_was_not_ready_in_time_has_the_numbers_of_stops() -> None:
    found = explain_queue("team", kueue_workload(NOT_READY, **stops(WaitForStart=2, WaitForRecovery=1)))
    assert found.data == {"queue": "team", "before_ready": "2", "after_ready": "1"}


def event(reason: str, message: str, second: int, *, kind: str = "Warning", **more: Any) -> EventView:
    at = f"2026-01-01T00:00:{second:02}Z"
    return view(EventView, {"type": kind, "reason": reason, "message": message, "lastTimestamp": at, **more})


SHORT_OF_CPU = f"{ASSIGN}insufficient unused quota for cpu in flavor f, 2 more needed"
NO_MEMORY = f"{ASSIGN}resource memory unavailable in ClusterQueue"
EVICTED = event("EvictedDueToPreempted", "Preempted to accommodate another", 2, kind="Normal")
EVENTS = {
    "none": ([], "QueueWaits"),
    "the last one": ([event("Pending", SHORT_OF_CPU, 1), event("Pending", NO_MEMORY, 2)], "QueueRefuses"),
    "in another order": ([event("Pending", NO_MEMORY, 2), event("Pending", SHORT_OF_CPU, 1)], "QueueRefuses"),
    "repeated in a series": (
        [
            event("NoMatchingFlavor", NO_MEMORY, 1, series={"count": 2, "lastObservedTime": "2026-01-01T00:00:03Z"}),
            event("WaitingForQuota", SHORT_OF_CPU, 2),
        ],
        "QueueRefuses",
    ),
    "of an admission": (
        [event("NoMatchingFlavor", NO_MEMORY, 1), event("Other", "something else", 2, kind="Normal")],
        "QueueRefuses",
    ),
    "of an eviction": ([event("WaitingForQuota", SHORT_OF_CPU, 1), EVICTED], "QueueStops"),
    "after an eviction": ([EVICTED, event("NoMatchingFlavor", NO_MEMORY, 3)], "QueueRefuses"),
}


@pytest.mark.parametrize(("events", "cause"), EVENTS.values(), ids=EVENTS)
def test_last_event_has_the_cause_if_the_workload_cannot_be_read(events: list[EventView], cause: str) -> None:
    assert explain_queue("team", None, events).cause == cause


NOTES = {
    "no Workload": (None, False),
    "active": (kueue_workload(PREEMPTED), False),
    "deactivated by a person": (
        kueue_workload(condition("Evicted", True, 1, "Deactivated", "The workload is deactivated"), active=False),
        False,
    ),
    "deactivated before it ran": (kueue_workload(active=False), False),
    "given up": (kueue_workload(LIMIT, active=False), True),
}


@pytest.mark.parametrize(("seen", "is_given_up"), NOTES.values(), ids=NOTES)
def test_only_kueue_itself_gives_a_gang_up(seen: KueueWorkloadView | None, is_given_up: bool) -> None:
    assert (given_up(seen) is not None) is is_given_up


def test_mark_of_a_gang_that_kueue_gives_up_has_the_stops_and_the_last_line_while_it_assembled() -> None:
    mark = given_up(kueue_workload(LIMIT, active=False, **stops(WaitForStart=3)), "assembling: 3 pods, 2 placed")
    assert mark is not None
    assert (mark.by, mark.data) == (Stopper.QUEUE, {"reason": "DeactivatedDueToRequeuingLimitExceeded"})
    assert "3 times" in mark.text
    assert "assembling: 3 pods, 2 placed" in mark.text


def test_time_of_an_eviction_is_known_until_the_quota_is_given_again() -> None:
    again = condition("Evicted", False, 1, "QuotaReserved", "Previously: Preempted")
    assert (evicted_at(kueue_workload(PREEMPTED)) is None, evicted_at(kueue_workload(again)), evicted_at(None)) == (
        False,
        None,
        None,
    )


DECIDED = {
    "no Workload yet": (None, False),
    "no condition yet": (kueue_workload(), False),
    "not decided": (kueue_workload(condition("PodsReady", False, 1, "WaitForStart", "Not all pods are ready")), False),
    "refused": (kueue_workload(pending("insufficient quota")), True),
    "stopped": (kueue_workload(PREEMPTED), True),
}


@pytest.mark.parametrize(("seen", "decided"), DECIDED.values(), ids=DECIDED)
def test_reason_is_reported_again_when_kueue_has_decided(seen: KueueWorkloadView | None, decided: bool) -> None:
    assert has_queue_decision(seen) is decided
