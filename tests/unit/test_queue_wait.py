"""Why a gang waits in a queue of Kueue, by the conditions that the real manager writes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.waiting import (
    evicted_at,
    explain_queue,
    given_up,
    has_queue_decision,
)
from airflow_provider_gangjobs.kube.views import EventView, KueueWorkloadView, view

AT = "2026-01-01T00:00:00Z"
ASSIGN = "couldn't assign flavors to pod set main: "


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT}


def pending(message: str, reason: str = "Pending") -> dict[str, Any]:
    return condition("QuotaReserved", "False", reason, message)


def workload(
    *conditions: dict[str, Any], active: bool = True, stops: dict[str, int] | None = None
) -> KueueWorkloadView:
    """Kueue's Workload.

    :param stops: How often `waitForPodsReady` has stopped it, by the underlying cause.
    """
    evictions = [
        {"reason": "PodsReadyTimeout", "underlyingCause": cause, "count": count}
        for cause, count in (stops or {}).items()
    ]
    status = {"conditions": list(conditions), "schedulingStats": {"evictions": evictions}}
    return view(KueueWorkloadView, {"metadata": {"name": "w"}, "spec": {"active": active}, "status": status})


PREEMPTED = condition("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: u, JobUID: j)")
NOT_READY = condition("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout team-a/job-train-1a2b3")
STOPPED = condition("Evicted", "True", "ClusterQueueStopped", "The ClusterQueue is stopped")
ADMITTED = condition("Admitted", "True", "Admitted", "The workload is admitted")
LIMIT = condition(
    "Evicted",
    "True",
    "DeactivatedDueToRequeuingLimitExceeded",
    "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
)
CASES = {
    "no Workload yet": (None, Category.WAITING_FOR_QUOTA, "Waits for admission by Kueue queue team"),
    "Workload without conditions": (workload(), Category.WAITING_FOR_QUOTA, "Waits for admission by Kueue queue team"),
    "no quota now": (
        workload(pending(f"{ASSIGN}insufficient unused quota for cpu in flavor f, 2 more needed")),
        Category.WAITING_FOR_QUOTA,
        "Kueue queue team does not admit the gang yet: insufficient unused quota for cpu in flavor f, 2 more needed",
    ),
    "never fits": (
        workload(pending(f"{ASSIGN}insufficient quota for cpu in flavor f, request (6) > maximum capacity (4)")),
        Category.EXCEEDS_MAX_QUOTA,
        (
            "Kueue queue team cannot admit the gang: insufficient quota for cpu in flavor f, request (6) > maximum "
            "capacity (4)"
        ),
    ),
    "resource not listed": (
        workload(pending(f"{ASSIGN}resource memory unavailable in ClusterQueue")),
        Category.NO_MATCHING_FLAVOR,
        "Kueue queue team cannot admit the gang: resource memory unavailable in ClusterQueue",
    ),
    "no such queue": (
        workload(pending("LocalQueue team doesn't exist", "Inadmissible")),
        Category.QUEUE_MISCONFIGURED,
        "Kueue queue team cannot admit the gang: LocalQueue team doesn't exist",
    ),
    "held": (
        workload(pending("ClusterQueue c is inactive", "Inadmissible")),
        Category.QUEUE_HELD,
        "Kueue queue team cannot admit the gang: ClusterQueue c is inactive",
    ),
    "no place by topology": (
        workload(pending(f'{ASSIGN}topology "t" allows to fit only 1 out of 5 pod(s)')),
        Category.INSUFFICIENT_RESOURCES,
        'Kueue queue team does not admit the gang yet: topology "t" allows to fit only 1 out of 5 pod(s)',
    ),
    "preempted": (
        workload(pending(PREEMPTED["message"]), PREEMPTED),
        Category.PREEMPTED_BY_QUEUE,
        (
            "Kueue queue team has stopped the gang and lets it run again later (Preempted: Preempted to accommodate a "
            "workload (UID: u, JobUID: j))"
        ),
    ),
    "preempted, and judged again": (
        workload(pending(f"{ASSIGN}insufficient unused quota for cpu in flavor f, 2 more needed"), PREEMPTED),
        Category.WAITING_FOR_QUOTA,
        "Kueue queue team does not admit the gang yet: insufficient unused quota for cpu in flavor f, 2 more needed",
    ),
    "not ready in time": (
        workload(pending(NOT_READY["message"]), NOT_READY, stops={"WaitForStart": 2}),
        Category.PODS_READY_TIMEOUT,
        (
            "Kueue queue team has stopped the gang, because not all pods were ready in time (waitForPodsReady), and "
            "lets all ranks run again later: 2 times before all pods were ready"
        ),
    ),
    "not ready in time while it ran": (
        workload(pending(NOT_READY["message"]), NOT_READY, stops={"WaitForStart": 1, "WaitForRecovery": 1}),
        Category.PODS_READY_TIMEOUT,
        (
            "Kueue queue team has stopped the gang, because not all pods were ready in time (waitForPodsReady), and "
            "lets all ranks run again later: 1 time before all pods were ready and 1 time after all pods had been ready"
        ),
    ),
    "not ready in time, and judged again": (
        workload(pending(f"{ASSIGN}no node"), NOT_READY, stops={"WaitForStart": 2}),
        Category.WAITING_FOR_QUOTA,
        "Kueue queue team does not admit the gang yet: no node",
    ),
    "its queue was held, and does not suffice any more": (
        workload(
            pending(f"{ASSIGN}insufficient quota for cpu in flavor f, request (6) > maximum capacity (4)"), STOPPED
        ),
        Category.EXCEEDS_MAX_QUOTA,
        (
            "Kueue queue team cannot admit the gang: insufficient quota for cpu in flavor f, request (6) > maximum "
            "capacity (4)"
        ),
    ),
    "being stopped, with quota": (
        workload(STOPPED, condition("QuotaReserved", "True", "QuotaReserved", "Reserved"), ADMITTED),
        Category.QUEUE_HELD,
        (
            "Kueue queue team has stopped the gang and lets it run again later (ClusterQueueStopped: The ClusterQueue "
            "is stopped)"
        ),
    ),
    "given up": (
        workload(pending("evicted"), LIMIT, active=False),
        Category.QUEUE_DEACTIVATED,
        (
            "Kueue queue team does not let the gang run, because its Workload w is inactive: The workload is "
            "deactivated due to exceeding the maximum number of re-queuing retries"
        ),
    ),
    "quota reserved, checks to do": (
        workload(condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue c")),
        Category.ADMISSION_CHECK,
        "Kueue queue team has reserved quota, and waits for its checks",
    ),
    "admitted": (
        workload(
            condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue c"),
            ADMITTED,
            condition("Evicted", "False", "QuotaReserved", "Previously: The ClusterQueue is stopped"),
        ),
        Category.CONTROLLER_SILENT,
        "Kueue queue team has admitted the gang, and lets it run",
    ),
}


@pytest.mark.parametrize(("seen", "category", "text"), CASES.values(), ids=CASES)
def test_reason_of_a_wait(seen: KueueWorkloadView | None, category: Category, text: str) -> None:
    found = explain_queue("team", seen)
    assert (found.category, found.text) == (category, text)


def event(reason: str, message: str, second: int, *, kind: str = "Warning", **more: Any) -> EventView:
    at = f"2026-01-01T00:00:{second:02}Z"
    return view(EventView, {"type": kind, "reason": reason, "message": message, "lastTimestamp": at, **more})


SHORT_OF_CPU = f"{ASSIGN}insufficient unused quota for cpu in flavor f, 2 more needed"
NO_MEMORY = f"{ASSIGN}resource memory unavailable in ClusterQueue"
SAYS_NO_MEMORY = "Kueue queue team cannot admit the gang: resource memory unavailable in ClusterQueue"
EVENTS = {
    "none": ([], "Waits for admission by Kueue queue team"),
    "the last one": ([event("Pending", SHORT_OF_CPU, 1), event("Pending", NO_MEMORY, 2)], SAYS_NO_MEMORY),
    "in another order": ([event("Pending", NO_MEMORY, 2), event("Pending", SHORT_OF_CPU, 1)], SAYS_NO_MEMORY),
    "a reason of UnadmittedWorkloadsObservability": (
        [event("WaitingForQuota", SHORT_OF_CPU, 1), event("NoMatchingFlavor", NO_MEMORY, 2)],
        SAYS_NO_MEMORY,
    ),
    "repeated in a series": (
        [
            event("NoMatchingFlavor", NO_MEMORY, 1, series={"count": 2, "lastObservedTime": "2026-01-01T00:00:03Z"}),
            event("WaitingForQuota", SHORT_OF_CPU, 2),
        ],
        SAYS_NO_MEMORY,
    ),
    "of an admission": (
        [event("NoMatchingFlavor", NO_MEMORY, 1), event("Other", "something else", 2, kind="Normal")],
        SAYS_NO_MEMORY,
    ),
    "of an eviction": (
        [
            event("WaitingForQuota", SHORT_OF_CPU, 1),
            event("EvictedDueToPreempted", "Preempted to accommodate another", 2, kind="Normal"),
        ],
        (
            "Kueue queue team has stopped the gang and lets it run again later (Preempted: Preempted to accommodate "
            "another)"
        ),
    ),
    "after an eviction": (
        [
            event("EvictedDueToPreempted", "Preempted to accommodate another", 1, kind="Normal"),
            event("NoMatchingFlavor", NO_MEMORY, 2),
        ],
        SAYS_NO_MEMORY,
    ),
}


@pytest.mark.parametrize(("events", "text"), EVENTS.values(), ids=EVENTS)
def test_last_event_has_the_reason_if_the_workload_cannot_be_read(events: list[EventView], text: str) -> None:
    assert explain_queue("team", None, events).text == text


NOTES = {
    "no Workload": (None, None),
    "active": (workload(PREEMPTED), None),
    "deactivated by a person": (
        workload(condition("Evicted", "True", "Deactivated", "The workload is deactivated"), active=False),
        None,
    ),
    "deactivated before it ran": (workload(active=False), None),
    "given up": (
        workload(LIMIT, active=False),
        (
            "The workload is deactivated due to exceeding the maximum number of re-queuing retries "
            "(DeactivatedDueToRequeuingLimitExceeded)"
        ),
    ),
    "given up because of its pods": (
        workload(LIMIT, active=False, stops={"WaitForStart": 3}),
        (
            "The workload is deactivated due to exceeding the maximum number of re-queuing retries "
            "(DeactivatedDueToRequeuingLimitExceeded). Kueue has stopped the gang 3 times before all pods were "
            "ready (waitForPodsReady)"
        ),
    ),
}


@pytest.mark.parametrize(("seen", "note"), NOTES.values(), ids=NOTES)
def test_only_kueue_itself_gives_a_gang_up(seen: KueueWorkloadView | None, note: str | None) -> None:
    stopped = given_up(seen)
    assert (stopped and stopped.text) == note


def test_note_of_a_gang_that_kueue_gives_up_has_its_last_line_while_it_assembled() -> None:
    note = given_up(workload(LIMIT, active=False), "assembling: 3 pods, 2 placed. Insufficient cpu on 2 of 2 nodes")
    assert note is not None
    assert note.text.endswith(". Before, the gang was assembling: 3 pods, 2 placed. Insufficient cpu on 2 of 2 nodes")


def test_time_of_an_eviction_is_known_until_the_quota_is_given_again() -> None:
    again = condition("Evicted", "False", "QuotaReserved", "Previously: Preempted")
    assert (evicted_at(workload(PREEMPTED)) is None, evicted_at(workload(again)), evicted_at(None)) == (
        False,
        None,
        None,
    )


DECIDED = {
    "no Workload yet": (None, False),
    "no condition yet": (workload(), False),
    "not decided": (workload(condition("PodsReady", "False", "WaitForStart", "Not all pods are ready")), False),
    "refused": (workload(pending("insufficient quota")), True),
    "stopped": (workload(PREEMPTED), True),
}


@pytest.mark.parametrize(("seen", "decided"), DECIDED.values(), ids=DECIDED)
def test_reason_is_reported_again_when_kueue_has_decided(seen: KueueWorkloadView | None, decided: bool) -> None:
    assert has_queue_decision(seen) is decided
