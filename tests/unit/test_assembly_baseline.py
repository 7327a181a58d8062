"""For how long a gang has assembled in runs that Kueue has stopped."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.state.job_annotations import AssemblyBaseline, parse_assembly_baseline
from airflow_provider_gangjobs.gang.state.queue_wait import earlier_assembly_s, next_assembly_baseline
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, view
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_ASSEMBLY_BASELINE,
    ANNOTATION_STOPPED,
)

LATER = "2026-01-01T00:01:00Z"


def stopped(before_ready: int, after_ready: int, preempted: int, admitted_s: int, **state: str) -> KueueWorkloadView:
    """Kueue's Workload of a gang that Kueue has stopped so often, and that was admitted for so long until then.

    :param state: The status of the conditions QuotaReserved and Evicted.
    """
    counts = {
        ("PodsReadyTimeout", "WaitForStart"): before_ready,
        ("PodsReadyTimeout", "WaitForRecovery"): after_ready,
        ("Preempted", ""): preempted,
    }
    evictions = [
        {"reason": reason, "underlyingCause": cause, "count": count}
        for (reason, cause), count in counts.items()
        if count
    ]
    conditions = [
        {"type": kind, "status": status, "reason": "any", "lastTransitionTime": LATER} for kind, status in state.items()
    ]
    status: dict[str, Any] = {
        "conditions": conditions,
        "schedulingStats": {"evictions": evictions},
        "accumulatedPastExecutionTimeSeconds": admitted_s,
    }
    return view(KueueWorkloadView, {"metadata": {}, "spec": {}, "status": status})


def noted(baseline: str | None, **annotations: str) -> StoredGang:
    """A Job of a gang with this note."""
    found = {**annotations, **({ANNOTATION_ASSEMBLY_BASELINE: baseline} if baseline is not None else {})}
    return read_job({"metadata": {"namespace": "team-a", "name": "train", "uid": "u", "annotations": found}})


EARLIER = {
    "no Workload": (noted(None), None, 0),
    "never stopped": (noted(None), stopped(0, 0, 0, 0), 0),
    "twice not ready in time": (noted(None), stopped(2, 0, 0, 61), 61),
    "preempted, not noted": (noted(None), stopped(2, 0, 1, 90), 0),
    "preempted, noted": (noted("1 30"), stopped(2, 0, 1, 90), 60),
    "ran and was stopped, noted": (noted("1 3630"), stopped(1, 1, 0, 3660), 30),
    "preempted again, not noted": (noted("1 30"), stopped(2, 0, 2, 150), 0),
    "a new Workload": (noted("1 30"), stopped(1, 0, 0, 30), 0),
    "a note of an unknown form": (noted("later"), stopped(1, 0, 0, 30), 30),
}


@pytest.mark.parametrize(("seen", "workload", "seconds"), EARLIER.values(), ids=EARLIER)
def test_runs_that_kueue_has_stopped_before_all_pods_were_ready_add_up(
    seen: StoredGang, workload: KueueWorkloadView | None, seconds: float
) -> None:
    assert earlier_assembly_s(seen, workload) == seconds


def test_v1beta1_spells_the_time_of_earlier_runs_in_another_way() -> None:
    eviction = {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart", "count": 1}
    status = {"schedulingStats": {"evictions": [eviction]}, "accumulatedPastExexcutionTimeSeconds": 61}
    assert earlier_assembly_s(noted(None), view(KueueWorkloadView, {"status": status})) == 61


BASELINES = {
    "no Workload": (noted(None), None, None),
    "not ready in time": (noted(None), stopped(2, 0, 0, 61), None),
    "preempted": (noted(None), stopped(1, 0, 1, 90), AssemblyBaseline(1, 90)),
    "stopped while it ran": (noted(None), stopped(0, 1, 0, 3600), AssemblyBaseline(1, 3600)),
    "noted": (noted("1 90"), stopped(1, 0, 1, 90), None),
    "a new Workload": (noted("1 30"), stopped(0, 0, 0, 0), AssemblyBaseline()),
    "being stopped": (noted(None), stopped(0, 0, 1, 0, QuotaReserved="True", Evicted="True"), None),
    "stopped": (noted(None), stopped(0, 0, 1, 9, QuotaReserved="False", Evicted="True"), AssemblyBaseline(1, 9)),
    "admitted again": (noted(None), stopped(0, 0, 1, 9, QuotaReserved="True", Evicted="False"), AssemblyBaseline(1, 9)),
    "stopped by the provider": (noted(None, **{ANNOTATION_STOPPED: "why"}), stopped(0, 0, 1, 9), None),
}


@pytest.mark.parametrize(("seen", "workload", "baseline"), BASELINES.values(), ids=BASELINES)
def test_stop_for_another_reason_ends_the_sum(
    seen: StoredGang, workload: KueueWorkloadView | None, baseline: AssemblyBaseline | None
) -> None:
    assert next_assembly_baseline(seen, workload) == baseline
    if baseline is not None:
        assert parse_assembly_baseline(str(baseline)) == baseline
